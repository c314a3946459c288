#!/usr/bin/env python3
"""Answers to questions that need two pages whose KV was recorded alone, by what is computed anew:
  python make_eval.py DATA --samples 150 --pages 2 --seed 2002 --kinds join,about --across
  python reuse_accuracy.py MODEL DATA [--choosers "full;vlcache:r=0.1;asked:r=0.1"] [--out answers.jsonl]
Every page is seen alone first, behind other words; then each question comes once for every chooser (`full`: nothing is reused). Prints, per chooser: exact
answers, those of `full` (the paired count), and image tokens computed, mean over layers and pages."""
import argparse, json, os, subprocess, sys

VLCACHE = os.environ.get("VLCACHE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/release/vlcache"))
DEFAULT = ["full", "static:r=0"] + [f"{name}:r={r}" for r in (0.025, 0.1, 0.15) for name in ("vlcache", "static", "cacheblend", "kvshare", "asked")]


def requests(data, samples, choosers):
    for s in samples:
        images = [os.path.join(data, name) for name in s["images"]]
        for i, image in enumerate(images):
            yield dict(id=f"{s['id']} page {i}", system="Here is a page.", prompt="What is this?", images=[image], max_tokens=1, reuse="vlcache:r=0.1")
        for chooser in choosers:
            yield dict(id=f"{s['id']} {chooser}", system="You will be asked about two pages; answer in full sentences.", prompt=s["question"], images=images,
                       max_tokens=80, reuse="off" if chooser == "full" else chooser)


def main():
    ap = argparse.ArgumentParser(); ap.add_argument("model"); ap.add_argument("data"); ap.add_argument("--choosers", default=";".join(DEFAULT), help="separated by ;")
    ap.add_argument("--samples", type=int, default=10**9); ap.add_argument("--threads", default="2"); ap.add_argument("--out")
    a = ap.parse_args(); choosers = a.choosers.split(";")
    samples = [json.loads(line) for line in open(os.path.join(a.data, "eval.jsonl"))][: a.samples]
    lines = "".join(json.dumps(r) + "\n" for r in requests(a.data, samples, choosers))
    out = open(a.out, "w") if a.out else subprocess.PIPE
    run = subprocess.run([VLCACHE, "run", "-m", a.model, "--requests", "-", "--batch", "1", "--threads", a.threads, "--cache-ram", "2GiB", "--kv-memory", "2GiB", "--json"], input=lines, stdout=out, text=True)
    answers = {r["id"]: r for r in map(json.loads, open(a.out) if a.out else run.stdout.splitlines())}
    text = lambda s, chooser: answers[f"{s['id']} {chooser}"].get("text", "").strip()
    print(f"{'chooser':34} right  as full  tokens computed")
    for chooser in choosers:
        pages = [i for s in samples for i in answers[f"{s['id']} {chooser}"]["cache"]["images"]]
        expected = "computed" if chooser == "full" else "ram"
        wrong = [i for i in pages if i["source"] != expected]
        if wrong: print(f"{chooser}: {len(wrong)} pages were not from {expected}: {wrong[0]}", file=sys.stderr)
        share = sum(i["recomputed_tokens"] for i in pages) / sum(i["n_tokens"] for i in pages)
        right = sum(text(s, chooser) == s["answer"] for s in samples)
        print(f"{chooser:34} {right:5}  {sum(text(s, chooser) == text(s, 'full') for s in samples):7}  {100 * share:5.1f} %" if "full" in choosers else f"{chooser:34} {right:5}  {100 * share:5.1f} %")
    print(f"of {len(samples)}")


if __name__ == "__main__": main()
