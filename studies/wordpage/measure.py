#!/usr/bin/env python3
"""What WordPage is asked under M-RoPE beside `vlcache eval`: requests of `vlcache run --requests`, and tables of their answers.

    measure.py edits  OUT --samples 500 --seed 6001            a page, then the same page with one fact edited: under --reuse-similar, and computed
    measure.py frames OUT --samples 100 --seed 6101            a page, then the same page on which a small disc has moved
    measure.py dedup  OUT --samples 200 --seed 6201            pages of which a third is blank, with more and more noise, under settings of --image-dedup
    measure.py clips  OUT --samples 15 --frames 32 --seed 6301 four questions a clip; two frames show two strips of sentences; --still: half of them are the last frames'
    vlcache run -m MODEL --requests OUT/requests.jsonl > OUT/answers.jsonl        (or OUT/jobs/*, the same lines in pieces)
    measure.py table OUT [ANSWERS...] [--by noise]
    measure.py plans PLAN...                                   counts of `vlcache tune reuse -o PLAN` on several data, together

OUT/cases.jsonl has the right answers; a request's id is its case and its setting. `table` compares each setting with the first one, case
by case: intervals are of 95 %, from 4,000 bootstrap samples of whole groups (a page or clip with its questions). Paths in the requests begin as
OUT does. Clips of any length say each fact that is asked about once; other facts are said again where the lists end."""
import argparse, glob, json, math, os, random
from collections import defaultdict
from PIL import Image, ImageChops, ImageDraw
from pages import CELL, RELATIONS, SIDE, Facts, Printer, sentence, with_gaps
from reuse_accuracy import intervals

SIMILAR = dict(reuse="vlcache:r=0.025", reuse_similar=True)
DEDUP = {"off": {}} | {f"{share}{' weights' * weights}": dict(image_dedup=share, image_dedup_weights=bool(weights)) for share in (0, 0.02, 0.1, 0.25) for weights in (0, 1)}
NOISE = (0, 2, 8, 20)  # levels of 255, of pages in turn: neighbours differ by twice as much at most
KV = {"full": dict(kv="full")} | {kv: dict(kv=kv, kv_budget="10%") for kv in ("vl-cache@paper", "auto", "draft")}
STRIP = dict(rows=2, words=29)  # of a clip's unit: 32 tokens


def cells(page): return [w for fact in page for w in fact[3]]


def question(fact): return RELATIONS[fact[0]][3].format(s=fact[1])


def noisy(image, levels, r):
    """Every pixel lighter or darker by up to so many levels. Rows repeat after 29, which no two neighbouring cells can see and PNG can."""
    if not levels: return image
    noise = [[r.randint(-levels, levels) for _ in range(image.width)] for _ in range(29)]; tile = Image.new("L", (image.width, 29)); tile.putdata([128 + x for row in noise for x in row])
    whole = Image.new("L", image.size)
    for y in range(0, image.height, 29): whole.paste(tile, (0, y))
    return ImageChops.add(image.convert("L"), whole, offset=-128)


def save(image, path):
    os.makedirs(os.path.dirname(path), exist_ok=True); image.convert("L").save(path)  # pages are gray


class Writer:
    """requests.jsonl, cases.jsonl, and jobs/*: the requests of so many groups each"""
    def __init__(self, out, n_per_job): self.out, self.n_per_job, self.groups = out, n_per_job, []
    def group(self, name): self.groups.append(([], [])); self.name = name
    def ask(self, case, setting, request): self.groups[-1][0].append(dict(id=f"{case} | {setting}") | request)
    def case(self, case, answer, **more): self.groups[-1][1].append(dict(case=case, group=self.name, answer=answer) | more)
    def close(self):
        os.makedirs(os.path.join(self.out, "jobs"), exist_ok=True)
        def write(name, lines): open(os.path.join(self.out, name), "w").writelines(json.dumps(x) + "\n" for x in lines)
        write("cases.jsonl", (c for _, cases in self.groups for c in cases)); write("requests.jsonl", (r for requests, _ in self.groups for r in requests))
        for i in range(0, len(self.groups), self.n_per_job): write(f"jobs/{i // self.n_per_job:03d}.jsonl", (r for requests, _ in self.groups[i:i + self.n_per_job] for r in requests))


def ask_pair(writer, i, first, second, prompt, answer, old):
    """The second image computed comes last: the KV that this leaves would else serve the request before it."""
    images = [f"{writer.out}/pages/{i:04d}{side}.png" for side in "ab"]
    for image, path in zip((first, second), images): save(image, path)
    line = lambda image: dict(prompt=prompt, images=[image], max_tokens=32)
    writer.group(f"{i}"); writer.case(f"{i} first", old); writer.case(f"{i}", answer, old=old if old != answer else None)
    writer.ask(f"{i} first", "similar", line(images[0]) | SIMILAR); writer.ask(f"{i}", "similar", line(images[1]) | SIMILAR)
    writer.ask(f"{i}", "computed", line(images[1]) | dict(reuse="exact"))


def edits(a):
    facts, r, writer = Facts(a.seed), random.Random(a.seed + 2), Writer(a.out, a.per_job)
    for i in range(a.samples):
        page = facts.page(set(), 256); j = r.randrange(len(page)); k, s, v, words = page[j]
        other = r.choice([x for x in RELATIONS[k][1] if x != v]); edited = list(page); edited[j] = (k, s, other, RELATIONS[k][2].format(s=s, v=other).split())
        draw = lambda p: Printer(f"{a.seed} {i}", basic=True).draw(cells(p))
        ask_pair(writer, i, draw(page), draw(edited), question(page[j]), sentence(edited[j][3]), sentence(words))
    writer.close()


def frames(a):
    facts, r, printer, writer = Facts(a.seed), random.Random(a.seed + 2), Printer(a.seed + 1, basic=True), Writer(a.out, a.per_job)
    for i in range(a.samples):
        page = facts.page(set(), 171); image = printer.draw(cells(page)); fact = r.choice(page)
        x, y = r.randrange(100, 700), r.randrange(700, 830)
        def with_disc(dx):
            out = image.copy(); ImageDraw.Draw(out).ellipse((x + dx, y, x + dx + 40, y + 40), fill=(120, 120, 120)); return out
        ask_pair(writer, i, with_disc(0), with_disc(r.randrange(8, 60)), question(fact), sentence(fact[3]), sentence(fact[3]))
    writer.close()


def dedup(a):
    facts, r, printer, writer = Facts(a.seed), random.Random(a.seed + 2), Printer(a.seed + 1, basic=True), Writer(a.out, a.per_job)
    for i in range(a.samples):
        page = facts.page(set(), 171); _, prompt, answer = facts.turns([page], 1)[0]; path = f"{a.out}/pages/{i:04d}.png"
        save(noisy(printer.draw(with_gaps(page, r) if a.gaps else cells(page)), NOISE[i % len(NOISE)], r), path)
        writer.group(f"{i}"); writer.case(f"{i}", answer, noise=NOISE[i % len(NOISE)])
        for setting, more in DEDUP.items(): writer.ask(f"{i}", setting, dict(prompt=prompt, images=[path], max_tokens=48) | more)
    writer.close()


def strips(facts, n, asked):
    """Sentences of n strips: the sentences of `asked` once each, at places of their own choice, others around them"""
    keys, at = {fact[:2] for fact in asked}, defaultdict(list)
    for i, place in enumerate(facts.r.sample(range(n), min(n, len(asked)))):
        at[place] += asked[i::n]
    taken, out, n_facts = set(keys), [], sum(len(relation[0]) for relation in RELATIONS)
    for i in range(n):
        if len(taken) > n_facts - 12: taken = set(keys)
        strip = at[i] + facts.page(taken, STRIP["words"] - len(cells(at[i]))); facts.r.shuffle(strip); out.append(strip)
    return out


def clips(a):
    facts, printer, writer, n_units, n_strips = Facts(a.seed), Printer(a.seed + 1, basic=True), Writer(a.out, a.per_job), a.frames // 2, a.strips
    settings = KV | {f"full, video_prune {a.prune}": dict(kv="full", video_prune=float(a.prune))} if a.prune else KV
    for c in range(a.samples):
        asked = facts.page(set(), 24)[:4]
        drawn = [printer.draw(cells(s), rows=STRIP["rows"]) for s in strips(facts, n_units + 1 if a.still else n_strips * n_units, asked)]
        for u in range(n_units):
            unit = Image.new("RGB", (SIDE * CELL, n_strips * STRIP["rows"] * CELL))
            for strip in (u, u + 1) if a.still else range(n_strips * u, n_strips * (u + 1)): unit.paste(drawn[strip], (0, strip % n_strips * STRIP["rows"] * CELL))
            for frame in (2 * u, 2 * u + 1): save(unit, f"{a.out}/pages/{c:03d}/f{frame:04d}.png")
        writer.group(f"{c}"); line = lambda fact: dict(prompt=question(fact), videos=[f"{a.out}/pages/{c:03d},fps={a.fps}"])
        for i, fact in enumerate(asked):
            writer.case(f"{c} {i}", sentence(fact[3]))
            for setting, more in settings.items(): writer.ask(f"{c} {i}", setting, line(fact) | dict(max_tokens=32) | more)
        for setting, more in settings.items() if c < a.long else []: writer.ask(f"{c} long", setting, line(asked[0]) | dict(max_tokens=192, ignore_eos=True) | more)
    writer.close()


def at_most(n_bad, n):
    """Clopper and Pearson's upper bound of a share, 97.5 %"""
    low, high = n_bad / n, 1.0
    for _ in range(60):
        p = (low + high) / 2
        if sum(math.comb(n, k) * p**k * (1 - p)**(n - k) for k in range(n_bad + 1)) > 0.025: low = p
        else: high = p
    return high


def read_answers(paths):
    """{setting: {case: answer}}; a job that was ended early has answers that are cut off, errors, and perhaps half a line"""
    found, errors = defaultdict(dict), []
    for line in (line for path in paths for line in open(path, errors="replace")):
        try: answer = json.loads(line)
        except json.JSONDecodeError: continue
        if "id" not in answer: continue
        if "error" in answer: errors.append(f"{answer['id']}: {answer['error']}")
        if answer.get("finish_reason") not in ("stop", "length"): continue
        case, setting = answer["id"].split(" | "); found[setting][case] = answer
    if errors: print(f"errors: {len(errors)}, such as {errors[0]}\n")
    return found


def mean(numbers): return sum(numbers) / len(numbers) if numbers else None


def columns(answers):
    """what a setting's answers cost or left out, of the answers that say so"""
    images = [image for a in answers for image in a["cache"]["images"]]
    dropped, kept = sum(i["dropped_tokens"] for i in images), sum(i["n_tokens"] for i in images)
    return {"dropped, %": 100 * dropped / (dropped + kept) if dropped else None, "changed tokens": mean([i["changed_tokens"] for i in images if "similar_to" in i]),
            "prompt tokens": mean([a["tokens"]["prompt"] for a in answers]), "KV MiB": mean([a["kv"]["bytes"] / 2**20 for a in answers])}


def table(a):
    cases = [json.loads(line) for line in open(os.path.join(a.out, "cases.jsonl"))]
    paths = a.answers or [os.path.join(a.out, "answers.jsonl")]
    found = read_answers(p for path in paths for p in (sorted(glob.glob(path + "/*.jsonl")) if os.path.isdir(path) else [path]))
    for value in sorted({c.get(a.by) for c in cases}) if a.by else [None]:
        if a.by: print(f"\n{a.by} {value}\n")
        print_table([c for c in cases if c.get(a.by) == value], found)


def print_table(cases, found):
    reference = next((s for s in ("computed", "off", "full") if s in found), None) or next(iter(found))
    print("| setting | questions (groups) | right | of `%s` | right more, points | answers as `%s` | old answers | %s |" % (reference, reference, " | ".join(columns([]))))
    print("|---|---:|---:|---:|---|---:|---|" + "---:|" * len(columns([])))
    for setting, of in found.items():
        both = [c for c in cases if c["case"] in of and c["case"] in found[reference]]
        if not both: continue
        text = lambda s, c: found[s][c["case"]]["text"].strip()
        groups, old = defaultdict(lambda: [0] * 4), sum(text(setting, c) == c.get("old") for c in both)
        for c in both:
            for j, x in enumerate((1, text(setting, c) == c["answer"], text(reference, c) == c["answer"], text(setting, c) == text(reference, c))): groups[c["group"]][j] += x
        n, right, reference_right, same = (sum(x) for x in zip(*groups.values()))
        (low, high), = intervals(list(groups.values()), lambda s: (100 * (s[1] - s[2]) / s[0],))
        more = columns([of[c["case"]] for c in both]); shown = " | ".join("" if x is None else f"{x:.1f}" for x in more.values())
        print(f"| {setting} | {n} ({len(groups)}) | {right} | {reference_right} | {100 * (right - reference_right) / n:+.1f} ({low:+.1f} to {high:+.1f}) | {same} | "
              f"{old} ({100 * at_most(old, n):.1f} % at most) | {shown} |")
        failed = [c["case"] for c in both if any("similar_to" in i for i in of[c["case"]]["cache"]["images"]) != (setting == "similar")]
        if failed and "similar" in found: print(f"not as asked, {setting}: {len(failed)}, such as {failed[0]}")
    first = [c for c in cases if c["case"].endswith(" first") and c["case"] in found["similar"]] if "similar" in found else []
    if first: print(f"first images: {sum(found['similar'][c['case']]['text'].strip() == c['answer'] for c in first)} of {len(first)} right")
    for setting, of in found.items():
        long = [x for case, x in of.items() if case.endswith(" long")]
        if long: print(f"{setting}, {len(long)} answers of 192 tokens: {mean([1000 * (x['tokens']['generated'] - 1) / x['timings_ms']['decode'] for x in long]):.1f} tokens/s, KV {mean([x['kv']['bytes'] / 2**20 for x in long]):.1f} MiB")


def plans(a):
    """what `tune reuse` counted on parts of its data, together"""
    found = [json.load(open(path)) for path in a.plans]
    print("| documented schedule | answers | changed | floor: changed of | right, computed | became wrong | became right |\n|---|---:|---:|---:|---:|---:|---:|")
    for kind in ("one_image", "several_images", "several_images_looking"):
        of = [x[kind] for x in found if kind in x]
        if not of: continue
        n, equal = (sum(x[key] for x in of) for key in ("cases", "equal")); right, lost, gained = (sum(x["scores"][key] for x in of) for key in ("right", "lost", "gained"))
        floor = [sum(f[key] for x in of for f in x["floor"].values()) for key in ("changed", "cases")]
        print(f"| {kind} | {n} | {n - equal} ({100 * at_most(n - equal, n):.1f} % at most) | {floor[0]} of {floor[1]} | {right} | {lost} ({100 * at_most(lost, right):.1f} % at most) | {gained} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); commands = ap.add_subparsers(required=True)
    for run in (edits, frames, dedup, clips):
        c = commands.add_parser(run.__name__); c.set_defaults(run=run); c.add_argument("out"); c.add_argument("--samples", type=int, required=True); c.add_argument("--seed", type=int, required=True); c.add_argument("--per-job", type=int, default=20, help="pages or clips of a job")
        if run is dedup: c.add_argument("--gaps", action="store_true", help="the blank cells stand between sentences, not at the end")
        if run is clips:
            c.add_argument("--frames", type=int, required=True); c.add_argument("--strips", type=int, default=2, help="of a unit"); c.add_argument("--fps", default="2"); c.add_argument("--still", action="store_true"); c.add_argument("--prune", help="full under video_prune, too"); c.add_argument("--long", type=int, default=4, help="clips about which long answers are asked, for speed")
    c = commands.add_parser("table"); c.set_defaults(run=table); c.add_argument("out"); c.add_argument("answers", nargs="*", help="files, or folders of them"); c.add_argument("--by", help="a field of the cases, such as noise")
    c = commands.add_parser("plans"); c.set_defaults(run=plans); c.add_argument("plans", nargs="+")
    a = ap.parse_args(); a.run(a)


if __name__ == "__main__": main()
