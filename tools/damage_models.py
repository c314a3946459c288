#!/usr/bin/env python3
"""Asks fixture models whose configurations, processor files and tensor headers are damaged (tests/damaged_models.py), under limits of time and memory.
Each must answer, or end with exit code 2 and one line that names a file or a key. Prints how many did which, and the cases that did neither.

    tools/damage_models.py [--cases 5000] [--seed 0] [--only MODEL:SEED] [--show] build/release/vlcache
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
from damaged_models import DamagedModel, models  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("vlcache")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next has the next")
    parser.add_argument("--only", help="one case, MODEL:SEED, as printed")
    parser.add_argument("--show", action="store_true", help="print every case and its result")
    args = parser.parse_args()
    if args.only:
        name, seed = args.only.split(":")
        cases = [(next(model for model in models() if model.name == name), int(seed))]
    else:
        cases = [(models()[seed % len(models())], seed) for seed in range(args.seed, args.seed + args.cases)]

    def ask(case):
        damaged = DamagedModel(*case)
        return str(damaged), damaged.ask(args.vlcache)

    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for damaged, end in pool.map(ask, cases):
            counts[end.fault or ("refused" if end.returncode else "answered")] += 1
            if end.fault or args.show or args.only:
                print(f"{end.fault or 'ok'}: {damaged}\n    {end.stderr.strip()[:1000]}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in counts.most_common()))
    return 1 if set(counts) - {"answered", "refused"} else 0


if __name__ == "__main__":
    sys.exit(main())
