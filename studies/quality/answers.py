#!/usr/bin/env python3
"""Answers to the questions of an eval.jsonl (`studies/wordpage/make_eval.py`) under several settings of `vlcache run`, and their shares on the same questions:

  answers.py run OUT DATA --setting "dense: -m DIR" --setting "int4: -m DIR --weights int4"
  answers.py table OUT --pair int4/dense --changes "int4, 64/int4" "dense, 64/dense"

OUT/NAME/PART.jsonl holds the answers to a part of the questions; answers that are there are not asked again, so that a run may be ended at any time and resumed. `table` counts
exact answers; of a pair, on the questions that both were asked: right answers of each, questions that one has right and not the other, and the ratio with an interval of 95 % from
4,000 bootstrap samples of questions. `--changes`: how often the answers of two pairs differ, in letters, on the questions that all were asked, and by how much more often the first
pair's do. VLCACHE: the program."""
import argparse, json, os, random, shlex, subprocess

VLCACHE = os.environ.get("VLCACHE", "build/release/vlcache")


def run(a):
    samples = [json.loads(line) for line in open(os.path.join(a.data, "eval.jsonl"))][: a.samples]
    settings = {name.strip(): shlex.split(flags) for name, flags in (s.split(":", 1) for s in a.setting)}
    for part in range(0, len(samples), a.part):
        lines = "".join(json.dumps(dict(id=s["id"], prompt=s["question"], images=[os.path.join(a.data, i) for i in s["images"]], max_tokens=80)) + "\n" for s in samples[part:part + a.part])
        right = {s["id"]: s["answer"] for s in samples[part:part + a.part]}
        for name, flags in settings.items():
            path = os.path.join(a.out, name, f"{part:05d}.jsonl")
            if os.path.exists(path): continue
            found = subprocess.run([VLCACHE, "run", "--requests", "-", "--batch", str(a.batch), "--kv-memory", "2GiB", "--cache-ram", "0", *flags], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
            rows = [dict(id=x["id"], text=x["text"], right=x["text"].strip() == right[x["id"]]) for x in map(json.loads, found.splitlines())]
            os.makedirs(os.path.dirname(path), exist_ok=True); open(path + ".new", "w").writelines(json.dumps(x) + "\n" for x in rows); os.replace(path + ".new", path)
            print(f"{name}: questions {part} to {part + len(rows) - 1}: {sum(x['right'] for x in rows)} right", flush=True)


def load(out, name):
    folder = os.path.join(out, name); return {x["id"]: x for f in sorted(os.listdir(folder)) if f.endswith(".jsonl") for x in map(json.loads, open(os.path.join(folder, f)))}


def interval(both, of=lambda x, y, n: x / max(1, y)):
    """of `of` both sums and their number, by default the ratio of the sums"""
    r, n = random.Random(1), len(both)
    found = sorted(of(*map(sum, zip(*r.choices(both, k=n))), n) for _ in range(4000)); return found[100], found[-101]


def table(a):
    found = {name: load(a.out, name) for name in sorted(os.listdir(a.out))}
    print("| setting | questions | right |\n|---|---:|---:|")
    for name, answers in found.items(): print(f"| {name} | {len(answers)} | {sum(x['right'] for x in answers.values())} |")
    if a.pair: print("\n| pair | questions | right | lost | gained | other answers | ratio | 95 % |\n|---|---:|---:|---:|---:|---:|---:|---|")
    for one, other in (p.split("/") for p in a.pair):
        both = [(found[one][i], found[other][i]) for i in found[one] if i in found[other]]; right = [(x["right"], y["right"]) for x, y in both]; n, m = map(sum, zip(*right)); low, high = interval(right)
        print(f"| {one} / {other} | {len(both)} | {n} of {m} | {sum(y and not x for x, y in right)} | {sum(x and not y for x, y in right)} | {sum(x['text'] != y['text'] for x, y in both)} | {n / max(1, m):.3f} | {low:.3f} to {high:.3f} |")
    if a.changes: print("\n| pairs | questions | of the first differ | of the second | difference, points | 95 % |\n|---|---:|---:|---:|---:|---|")
    for pairs in a.changes: changes(found, pairs)


def changes(found, pairs):
    """whether answers differ, of two pairs on the same questions"""
    (a, b), (c, d) = (p.split("/") for p in pairs); ids = set.intersection(*(set(found[x]) for x in (a, b, c, d))); differ = lambda x, y, i: found[x][i]["text"] != found[y][i]["text"]
    both = [(differ(a, b, i), differ(c, d, i)) for i in sorted(ids)]; low, high = interval(both, lambda x, y, n: 100 * (x - y) / n); x, y = map(sum, zip(*both))
    print(f"| {pairs[0]} and {pairs[1]} | {len(both)} | {x} | {y} | {100 * (x - y) / len(both):.2f} | {low:.2f} to {high:.2f} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); commands = ap.add_subparsers(required=True)
    c = commands.add_parser("run"); c.set_defaults(run=run); c.add_argument("out"); c.add_argument("data"); c.add_argument("--setting", action="append", required=True)
    c.add_argument("--samples", type=int, default=10**9); c.add_argument("--part", type=int, default=100); c.add_argument("--batch", type=int, default=4)
    c = commands.add_parser("table"); c.set_defaults(run=table); c.add_argument("out"); c.add_argument("--pair", action="append", default=[])
    c.add_argument("--changes", nargs=2, action="append", default=[])
    a = ap.parse_args(); a.run(a)


if __name__ == "__main__": main()
