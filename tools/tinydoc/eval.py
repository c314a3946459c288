"""Accuracy of vlcache on the TinyDoc questions beside that of the Hugging Face implementation. Standard library only.

  python3 eval.py --binary build/release/vlcache [--model models/tinydoc] [--data tests/fixtures/tinydoc] [-- --dtype f32]

Runs `vlcache run --requests` once on DATA/questions.jsonl, greedily, and prints a table by kind with DATA/hf_accuracy.json
beside it. Exit code 1 if the share of exact answers over all questions differs by more than --tolerance points.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def read_jsonl(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def run(a, rows):
    """{id: answer} of the binary."""
    with tempfile.TemporaryDirectory() as tmp:
        requests = Path(tmp) / "requests.jsonl"
        with open(requests, "w", encoding="utf-8") as f:
            for row in rows:
                f.write(json.dumps({"id": row["id"], "prompt": row["question"], "max_tokens": 128, "temperature": 0,
                                    "images": [os.path.abspath(a.data / name) for name in row["images"]]}) + "\n")
        command = [a.binary, "run", "-m", a.model, "--requests", str(requests), *a.more]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for line in out.splitlines():
        answer = json.loads(line)
        if "error" in answer:
            print(f"{answer.get('id')}: {answer['error']}", file=sys.stderr)
        found[answer["id"]] = answer.get("text", "").strip()
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default="build/release/vlcache")
    ap.add_argument("--model", default="models/tinydoc")
    ap.add_argument("--data", type=Path, default=Path("tests/fixtures/tinydoc"))
    ap.add_argument("--dtype", choices=("f32", "bf16"), default="bf16", help="the reference to compare with")
    ap.add_argument("--tolerance", type=float, default=0.5, help="percentage points")
    ap.add_argument("more", nargs="*", help="further flags for the binary, after --")
    a = ap.parse_args()
    rows = read_jsonl(a.data / "questions.jsonl")
    reference = {r["id"]: r[a.dtype] for r in read_jsonl(a.data / "hf_answers.jsonl")}
    a.more = ["--dtype", a.dtype, *a.more]
    found = run(a, rows)
    print(f"{'kind':8} {'questions':>9} {'vlcache %':>10} {'transformers %':>15} {'same answer %':>14}")
    share = lambda part, test: 100 * sum(map(test, part)) / len(part)
    for kind in [*dict.fromkeys(r["kind"] for r in rows), "all"]:
        part = [r for r in rows if kind in (r["kind"], "all")]
        ours = share(part, lambda r: found.get(r["id"]) == r["answer"])
        theirs = share(part, lambda r: reference[r["id"]] == r["answer"])
        same = share(part, lambda r: found.get(r["id"]) == reference[r["id"]])
        print(f"{kind:8} {len(part):9} {ours:10.1f} {theirs:15.1f} {same:14.1f}")
    if abs(ours - theirs) > a.tolerance + 1e-9:
        sys.exit(f"accuracy differs from transformers' by {ours - theirs:+.1f} points, allowed: {a.tolerance}")


if __name__ == "__main__":
    main()
