#!/usr/bin/env python3
"""Answers where pages were seen after something else before, by the recomputed tokens (`vlcache run --reuse CHOOSER`):

    make_eval.py DATA --samples 500 --pages 2,4 --kinds fact,who --turns 4 --seed 4001
    make_eval.py OTHERS --samples 1000 --pages 1 --seed 4301          # pages that stand before others; each is used once
    reuse_accuracy.py ask MODEL DATA answers.jsonl --others OTHERS --choosers "vlcache:r=0;vlcache:r=0.1" --some "asked:r=0.1"
    reuse_accuracy.py table DATA answers.jsonl [--by kind|n_pages|condition]

A line of DATA is a set: pages and some questions about them. `ask` has its pages seen as the set's condition says (records
below), then asks every question once by each chooser, and last with everything computed (`full`: exact reuse, so that the
set's pages are computed once). It resumes where it was. `table` prints Markdown; intervals are paired, of 95 %, from 4,000
bootstrap samples of whole sets, since questions about the same pages are no independent samples."""
import argparse, itertools, json, os, random, subprocess, sys, threading
from collections import defaultdict

VLCACHE = os.environ.get("VLCACHE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/release/vlcache"))
ASKED = "You will be asked about some pages; answer in full sentences."
OTHER = "Here is a page."
LONG = "The following was sent to us this morning by a customer who would like to know more about what it says. Please read it with care, from the first line to the last, and then reply to the question below it."
LETTER = LONG + " " + ("We have had it for some days, and nobody in the house has found the time to go through it; those who began say that the lines are short and that there are many of them. Nothing on it is secret. "
          "Whoever replies should keep to what is written there, should not guess, and should write as one would write to a neighbour, in whole sentences and without any greeting. "
          "If something is said twice, once is enough; if it is not said at all, say so. The reply goes out in the evening with the rest of the mail, so there is no hurry before noon, "
          "but it must not wait until tomorrow. Thank you for your help, and for the help with the letters of last week, which were longer than this one and much harder to read. ") * 2
CONDITIONS = ["system", "page", "swapped", "mixed"]
# Of a page alone, text that it was seen after and is asked after: 5 and 13 tokens, 5 and 364, 364 and 13, 45 and 13.
OF_ONE_PAGE = {"8 tokens later": (OTHER, ASKED), "359 later": (OTHER, LETTER), "351 earlier": (LETTER, ASKED), "32 earlier": (LONG, ASKED)}


def load_sets(data):
    """[{id, condition, n_pages, turns: [{kind, question, answer}], images: paths}]; conditions in turn, for every number of pages"""
    sets = [json.loads(line) for line in open(os.path.join(data, "eval.jsonl"))]
    n_counts = len({s["n_pages"] for s in sets})
    for i, s in enumerate(sets):
        s.setdefault("turns", [dict(kind=s["kind"], question=s["question"], answer=s["answer"])])
        s.update(condition=list(CONDITIONS if s["n_pages"] > 1 else OF_ONE_PAGE)[i // n_counts % len(CONDITIONS)], half=i // (n_counts * len(CONDITIONS)) % 2, images=[os.path.join(data, name) for name in s["images"]])
    return sets


def records(s, others):
    """How the set's pages are seen before: [(system, images)]; uses pages of `others` to stand before them."""
    pages = s["images"]
    if len(pages) == 1: return [(OF_ONE_PAGE[s["condition"]][0], pages)]
    if s["condition"] == "system": return [((OTHER, LONG)[j % 2], [page]) for j, page in enumerate(pages)]
    if s["condition"] == "page": return [(ASKED, [next(others), page]) for page in pages]
    if s["condition"] == "swapped": return [(ASKED, pages[::-1])]
    return [(OTHER, [next(others), pages[0]]), (LONG, pages[1:][::-1])]


def system_of(s): return OF_ONE_PAGE[s["condition"]][1] if s["n_pages"] == 1 else ASKED


def requests(sets, others, choosers, some):
    """Lines of `run --requests`. Prompts computed in full come after the set's other lines, which would else find it as their prefix; its first question comes long before the rest, which then share its prefix."""
    full = []
    for s in sets:
        for j, (system, images) in enumerate(records(s, others)): yield dict(id=f"{s['id']} seen {j}", system=system, prompt="What is this?", images=images, max_tokens=1, reuse="vlcache:r=0.1")
        yield from full[:1]
        line = lambda turn, chooser: dict(id=f"{s['id']} {turn} {chooser}", system=system_of(s), prompt=s["turns"][turn]["question"], images=s["images"], max_tokens=80, reuse="exact" if chooser == "full" else chooser)
        for turn in range(len(s["turns"])): yield from (line(turn, chooser) for chooser in choosers + (some if s["half"] == 0 else []))
        yield from full[1:]
        full = [line(turn, "full") for turn in range(len(s["turns"]))]
    yield from full


def load_answers(path):
    """{set: {(turn, chooser): {text, images: [[source, n_tokens, recomputed_tokens]]}}}"""
    answers = defaultdict(dict)
    for line in open(path) if os.path.exists(path) else []:
        a = json.loads(line); answers[a["set"]][a["turn"], a["chooser"]] = a
    return answers


def check_sources(a):
    """Nothing that was to be loaded may have been computed, or the other way round."""
    found = {source for source, _, _ in a["images"]}
    if not found <= ({"computed", "prefix"} if a["chooser"] == "full" else {"ram", "prefix"}): sys.exit(f"set {a['set']}, question {a['turn']}, {a['chooser']}: pages from {found}")


def ask(a):
    choosers, some = (text.split(";") if text else [] for text in (a.choosers, a.some))
    known, sets = load_answers(a.answers), load_sets(a.data)[a.first:][: a.sets]
    is_done = lambda s: all((turn, c) in known[s["id"]] for turn in range(len(s["turns"])) for c in choosers + (some if s["half"] == 0 else []) + ["full"])
    others = [os.path.join(a.others, name) for line in open(os.path.join(a.others, "eval.jsonl")) for name in json.loads(line)["images"]] if a.others else []
    todo, n_others = [s for s in sets if not is_done(s)], itertools.count()
    for s in todo: records(s, n_others)
    if (n := next(n_others)) > len(others): sys.exit(f"--others: {n} pages are needed, {len(others)} are there")
    print(f"{len(todo)} of {len(sets)} sets to ask", file=sys.stderr)
    p = subprocess.Popen([VLCACHE, "run", "-m", a.model, "--requests", "-", "--batch", "8", "--threads", a.threads, "--cache-ram", "1GiB", "--kv-memory", "2GiB", "--json", "--reuse-origin", a.origin],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    def write():
        for request in requests(todo, iter(others), choosers, some): p.stdin.write(json.dumps(request) + "\n")
        p.stdin.close()
    threading.Thread(target=write, daemon=True).start()
    with open(a.answers, "a") as out:
        for line in p.stdout:
            r = json.loads(line); name, turn, chooser = r["id"].split(" ", 2)
            if "error" in r: sys.exit(f"{r['id']}: {r['error']}")
            if turn == "seen": continue
            answer = dict(set=name, turn=int(turn), chooser=chooser, text=r["text"].strip(), images=[[i["source"], i["n_tokens"], i["recomputed_tokens"]] for i in r["cache"]["images"]])
            check_sources(answer); out.write(json.dumps(answer) + "\n"); out.flush()
    sys.exit(p.wait())


def intervals(per_set, of, rounds=4000, seed=1):
    """(2.5 %, 97.5 %) of each of the numbers that of(sums) gives, over sets drawn with replacement; per_set: [n_sets][n_counts]"""
    r, found = random.Random(seed), []
    for _ in range(rounds): found.append(of([sum(c) for c in zip(*r.choices(per_set, k=len(per_set)))]))
    return [(sorted(x)[int(0.025 * rounds)], sorted(x)[int(0.975 * rounds)]) for x in zip(*found)]


def rows(sets, answers, keep=lambda s, turn: True):
    """Per chooser {n_sets, n, full, right, kept, as_full, computed, counts}: of the questions that it and `full` have answered"""
    of = defaultdict(list)
    for s in sets:
        per = defaultdict(lambda: [0] * 5)
        for (turn, chooser), a in answers[s["id"]].items():
            full = answers[s["id"]].get((turn, "full"))
            if full is None or not keep(s, turn): continue
            right, full_right = (x["text"] == s["turns"][turn]["answer"] for x in (a, full))
            for j, x in enumerate((1, full_right, right, right and full_right, a["text"] == full["text"])): per[chooser][j] += x
        for chooser, counts in per.items(): of[chooser].append(counts)
    loaded = defaultdict(lambda: [0, 0])
    for a in (a for s in sets for a in answers[s["id"]].values()):
        for source, n, computed in a["images"]:
            if source == "ram": loaded[a["chooser"]][0] += computed; loaded[a["chooser"]][1] += n
    for chooser, counts in of.items():
        n, full, right, kept, as_full = (sum(c) for c in zip(*counts))
        yield chooser, dict(n_sets=len(counts), n=n, full=full, right=right, kept=kept, as_full=as_full, counts=counts, computed=loaded[chooser][0] / loaded[chooser][1] if loaded[chooser][1] else None)


def print_table(title, sets, answers, keep=lambda s, turn: True):
    """Markdown. Kept: of the answers that `full` has right; gained: right ones that it has not."""
    print(f"\n{title}\n\n| `--reuse` | questions (sets) | right | `full` right | accuracy of `full`'s, % | kept of `full`'s right, % | gained | answers as `full`, % | image tokens computed, % |\n|---|---:|---:|---:|---|---|---:|---:|---:|")
    for chooser, r in sorted(rows(sets, answers, keep)):
        row = f"| `{chooser}` | {r['n']} ({r['n_sets']}) | {r['right']} | {r['full']} | "
        if chooser == "full": print(row + "| | | | |"); continue
        (low, high), (least, most) = intervals(r["counts"], lambda c: (100 * c[2] / max(1, c[1]), 100 * c[3] / max(1, c[1])))
        print(row + f"{100 * r['right'] / r['full']:.2f} ({low:.2f} to {high:.2f}) | {100 * r['kept'] / r['full']:.2f} ({least:.2f} to {most:.2f}) | {r['right'] - r['kept']} | {100 * r['as_full'] / r['n']:.1f} | {'' if r['computed'] is None else format(100 * r['computed'], '.2f')} |")


def table(a):
    sets, answers = load_sets(a.data), load_answers(a.answers)
    if not a.by: return print_table("All", sets, answers)
    of = lambda s, turn: s["turns"][turn]["kind"] if a.by == "kind" else s[a.by]
    for value in sorted({of(s, t) for s in sets for t in range(len(s["turns"]))}): print_table(f"{a.by} {value}", sets, answers, lambda s, turn: of(s, turn) == value)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); commands = ap.add_subparsers(required=True)
    c = commands.add_parser("ask"); c.set_defaults(run=ask); c.add_argument("model"); c.add_argument("data"); c.add_argument("answers"); c.add_argument("--others", help="needed for sets of several pages")
    c.add_argument("--choosers", required=True, help="separated by ;"); c.add_argument("--some", default="", help="further ones, for half of the sets"); c.add_argument("--first", type=int, default=0); c.add_argument("--sets", type=int, default=10**9); c.add_argument("--threads", default="2")
    c.add_argument("--origin", default="first", help="--reuse-origin of the run")
    c = commands.add_parser("table"); c.set_defaults(run=table); c.add_argument("data"); c.add_argument("answers"); c.add_argument("--by", choices=["kind", "n_pages", "condition"])
    a = ap.parse_args(); a.run(a)


if __name__ == "__main__": main()
