#!/usr/bin/env python3
"""Tokens/s idle and beside one busy loop per CPU, alternating:  studies/under_load.py [--rounds N] [--shapes a,b] VLCACHE [VLCACHE...]

Several programs are compared round by round. Busy loops have the priority of the program: half of its idle speed is a fair share.
"""
import argparse
import contextlib
import csv
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = {
    "tinydoc": ["-m", ROOT / "models/tinydoc", "-p", 128, "-n", 64, "-r", 5],
    "135m": ["--random-weights", ROOT / "bench/shapes/135m.json", "-p", 128, "-n", 32, "-r", 3],
    "1.1b": ["--random-weights", ROOT / "bench/shapes/1.1b.json", "-p", 128, "-n", 8, "-r", 2],
}


@contextlib.contextmanager
def busy_loops(n):
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def bench(program, shape):
    """{test: tokens/s}"""
    command = [program, "bench", *TESTS[shape], "-o", "csv"]
    out = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
    return {"prefill" if int(row["n_prompt"]) else "decode": float(row["avg_ts"]) for row in csv.DictReader(out.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", default=",".join(TESTS))
    args = parser.parse_args()
    n_loops = len(os.sched_getaffinity(0))
    print(f"medians of {args.rounds} rounds, {n_loops} busy loops\n")
    print("| program | shape | test | idle | loaded | % of idle |\n|---|---|---|---:|---:|---:|")
    for shape in args.shapes.split(","):
        figures = {}
        for turn in range(args.rounds):
            for program in args.programs[:: -1 if turn % 2 else 1]:  # neither is always the first
                for n in (0, n_loops):
                    with busy_loops(n):
                        for test, speed in bench(program.resolve(), shape).items():
                            figures.setdefault((program, test, n > 0), []).append(speed)
        for (program, test, loaded), idle in sorted(figures.items(), key=lambda item: item[0][1] == "decode"):
            if not loaded:
                a, b = statistics.median(idle), statistics.median(figures[program, test, True])
                print(f"| {program} | {shape} | {test} | {a:.1f} | {b:.1f} | {100 * b / a:.0f} |", flush=True)


if __name__ == "__main__":
    main()
