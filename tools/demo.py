#!/usr/bin/env python3
"""Asks tinydoc the questions of models/tinydoc/demo and prints the answers.   demo.py VLCACHE"""
import itertools
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tinydoc"
DEMO = MODEL / "demo"


def main(vlcache):
    questions = [json.loads(line) for line in (DEMO / "questions.jsonl").read_text().splitlines()]
    requests = "".join(json.dumps({"prompt": q["question"], "images": [str(DEMO / i) for i in q["images"]], "max_tokens": 96}) + "\n" for q in questions)
    process = subprocess.run([vlcache, "run", "-m", str(MODEL), "--requests", "-"], input=requests, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(process.returncode)
    results = [json.loads(line) for line in process.stdout.splitlines()]
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")
    pairs = zip(questions, results, strict=True)
    for images, group in itertools.groupby(pairs, key=lambda p: p[0]["images"]):
        print(f"\n{bold}{'  '.join(str((DEMO / i).relative_to(ROOT)) for i in images)}{plain}")
        for q, r in group:
            if "error" in r:
                sys.exit(f"{q['question']}: {r['error']}")
            t, n = r["timings_ms"], r["tokens"]
            rate = (n["generated"] - 1) / t["decode"] * 1000 if t["decode"] > 0 else 0
            print(f"  {q['question']}")
            for line in r["text"].strip().splitlines() or [""]:
                print(f"    {bold}{line}{plain}")
            print(f"    {dim}vision {t['vision']:.0f} ms, first token {t['ttft']:.0f} ms ({n['prompt']} tokens, {n['vision']} of them image), "
                  f"then {rate:.0f} tokens/s, KV {r['kv']['bytes'] / 1024:.0f} KiB{plain}")
    print(f"\nLoaded in {results[0]['timings_ms']['load']:.0f} ms. Ask your own:\n"
          f"  build/release/vlcache run -m models/tinydoc -i {(DEMO / questions[0]['images'][0]).relative_to(ROOT)} \"{questions[0]['question']}\"\n"
          f"  build/release/vlcache chat -m models/tinydoc")


if __name__ == "__main__":
    main(sys.argv[1])
