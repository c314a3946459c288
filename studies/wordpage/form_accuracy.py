#!/usr/bin/env python3
"""Answers about pages whose KV another process has left on disk, by the form in which it was kept there and by the compression after the prompt:
  python make_eval.py DATA --samples 160 --pages 1 --seed 3003 --kinds fact,who
  python form_accuracy.py MODEL DATA "vlcache;vlcache --cache-codec int8;vlcache --cache-keep 0.2:key_diff;vlcache --kv draft --kv-budget 0.1;off"
A row is a chooser of --reuse (or off) and flags. For each form of KV (--cache-codec, --cache-keep) every page is seen alone first, after other words, by a process that stores it;
then a second process answers all questions. Prints, per row: exact answers; answers that the first row has right and this one has not, and the other way round; image tokens
computed, mean over layers; KV after the prompt."""
import argparse, json, os, shlex, subprocess, sys, tempfile
from reuse_accuracy import ASKED, OTHER, VLCACHE

KEPT = ("--cache-codec", "--cache-keep")


def split(row):
    """(chooser, flags of the form, {kv, kv_budget})"""
    chooser, *flags = shlex.split(row); pairs = list(zip(flags[::2], flags[1::2]))
    return chooser, [x for pair in pairs if pair[0] in KEPT for x in pair], {name[2:].replace("-", "_"): value for name, value in pairs if name not in KEPT}


def ask(a, lines, flags):
    command = [VLCACHE, "run", "-m", a.model, "--requests", "-", "--batch", "1", "--threads", a.threads, "--cache-ram", "2GiB", "--kv-memory", "2GiB", "--json", *flags]
    run = subprocess.run(command, input="".join(json.dumps(line) + "\n" for line in lines), stdout=subprocess.PIPE, text=True)
    return {r["id"]: r for r in map(json.loads, run.stdout.splitlines())}


def answers(a, samples, row):
    """One answer a sample."""
    chooser, form, policy = split(row)
    line = lambda id, system, prompt, images, **more: dict(id=id, prompt=prompt, images=[os.path.join(a.data, name) for name in images], **({} if a.plain else {"system": system}), **more)
    pages = [line(f"{s['id']} page {j}", OTHER, "What is this?", [page], max_tokens=1, reuse="vlcache:r=0.1") for s in samples for j, page in enumerate(s["images"])]
    lines = [line(s["id"], ASKED, s["question"], s["images"], max_tokens=80, reuse=chooser, **policy) for s in samples]
    if chooser == "off": return ask(a, lines, [])
    with tempfile.TemporaryDirectory() as disk:
        for _ in range(3):  # on a busy machine not all of them are stored at once
            seen = ask(a, pages, ["--cache-disk", disk, *form]); pages = [r for r in pages if seen[r["id"]]["cache"]["images"][0]["source"] == "computed"]
            if not pages: break
        return ask(a, lines, ["--cache-disk", disk, *form])


def main():
    ap = argparse.ArgumentParser(); ap.add_argument("model"); ap.add_argument("data"); ap.add_argument("rows", help="separated by ;"); ap.add_argument("--samples", type=int, default=10**9)
    ap.add_argument("--threads", default="2"); ap.add_argument("--plain", action="store_true", help="no system text: for models that know none (tinydoc)"); ap.add_argument("--out", help="answers, a line each"); a = ap.parse_args()
    samples = [json.loads(line) for line in open(os.path.join(a.data, "eval.jsonl"))][: a.samples]; first = None
    print(f"{'of ' + str(len(samples)):70} right  lost  gained  computed  KV MiB", flush=True)
    for row in a.rows.split(";"):
        found = answers(a, samples, row); bad = {i: r["error"] for i, r in found.items() if "error" in r}
        if bad: print(f"{row}: {len(bad)} errors: {next(iter(bad.values()))}", file=sys.stderr)
        if a.out: open(a.out, "a").writelines(json.dumps({"row": row, **r}) + "\n" for r in found.values())
        right = [found[s["id"]].get("text", "").strip() == s["answer"] for s in samples]; first = first or right
        images = [i for r in found.values() if "cache" in r for i in r["cache"]["images"]]; elsewhere = sum(i["source"] == "computed" for i in images)
        if elsewhere and row != "off": print(f"{row}: {elsewhere} of {len(images)} pages were computed", file=sys.stderr)
        computed = sum(i["recomputed_tokens"] for i in images) / max(1, sum(i["n_tokens"] for i in images)); kv = sum(r["kv"]["prompt_bytes"] for r in found.values() if "kv" in r) / max(1, len(found)) / 2**20
        print(f"{row:70} {sum(right):5} {sum(x and not y for x, y in zip(first, right)):5} {sum(y and not x for x, y in zip(first, right)):7}  {100 * computed:6.1f} %  {kv:6.2f}", flush=True)


if __name__ == "__main__": main()
