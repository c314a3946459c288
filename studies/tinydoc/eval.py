#!/usr/bin/env python3
"""tinydoc on 500 seeded pages: exact answers by kind, beside transformers' on the same weights.
Exit code 1 if the share over all kinds differs by more than half a point.
   eval.py VLCACHE [--model DIR] [--limit N] [--json] [-- extra flags of `vlcache run`, such as --kv-mode ...]
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 0.005  # of the share of exact answers: half a point
DATA = ROOT / "tests/fixtures/tinydoc"


def answers_of(vlcache, model, questions, batch, extra):
    requests = "".join(json.dumps({"id": q["id"], "prompt": q["question"], "images": [str(DATA / p) for p in q["images"]], "max_tokens": 128}) + "\n"
                       for q in questions)
    command = [vlcache, "run", "-m", str(model), "--requests", "-", "--batch", str(batch), "--temperature", "0", *extra]
    process = subprocess.run(command, input=requests, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit {process.returncode}: {process.stderr.strip()}")
    return [json.loads(line) for line in process.stdout.splitlines()]


def accuracy(questions, texts):
    """Share of exact answers, over all and by kind."""
    right, total = collections.Counter(), collections.Counter()
    for q, text in zip(questions, texts, strict=True):
        for kind in ("all", q["kind"]):
            total[kind] += 1
            right[kind] += text.strip() == q["answer"].strip()
    return {kind: right[kind] / total[kind] for kind in total}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("vlcache")
    a.add_argument("--model", default=str(ROOT / "models/tinydoc"))
    a.add_argument("--limit", type=int, default=500)
    a.add_argument("--batch", type=int, default=8)
    a.add_argument("--json", action="store_true")
    a.add_argument("extra", nargs="*")
    a = a.parse_args()
    questions = [json.loads(line) for line in (DATA / "questions.jsonl").read_text().splitlines()][: a.limit]
    theirs = [json.loads(line) for line in (DATA / "hf_answers.jsonl").read_text().splitlines()][: a.limit]

    report = {}
    for dtype in ("bf16", "f32"):
        begin = time.time()
        results = answers_of(a.vlcache, a.model, questions, a.batch, ["--dtype", dtype, *a.extra])
        failed = [r for r in results if "error" in r]
        if failed:
            sys.exit(f"{failed[0]['id']}: {failed[0]['error']}")
        texts = [r["text"] for r in results]
        same = sum(t.strip() == h[dtype].strip() for t, h in zip(texts, theirs, strict=True))
        report[dtype] = {"vlcache": accuracy(questions, texts), "transformers": accuracy(questions, [h[dtype] for h in theirs]),
                         "same_answers": same, "seconds": time.time() - begin}
    if a.json:
        print(json.dumps(report, indent=1))
        return report
    kinds = list(report["bf16"]["vlcache"])
    print(f"tinydoc, {len(questions)} questions, share of exact answers\n")
    print("| implementation | dtype | " + " | ".join(kinds) + " | same answer | seconds |\n|---|---|" + "---:|" * (len(kinds) + 2))
    for dtype, r in report.items():
        for who in ("vlcache", "transformers"):
            row = [f"{100 * r[who][k]:.1f}" for k in kinds]
            tail = f"{r['same_answers']} of {len(questions)} | {r['seconds']:.1f}" if who == "vlcache" else "|"
            print(f"| {who} | {dtype} | " + " | ".join(row) + f" | {tail} |")
    return report


if __name__ == "__main__":
    report = main()
    sys.exit(any(abs(r["vlcache"]["all"] - r["transformers"]["all"]) > TOLERANCE for r in report.values()))
