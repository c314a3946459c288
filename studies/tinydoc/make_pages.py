"""Writes seeded TinyDoc pages and questions for evaluation.

  python make_pages.py --out DIR [--seed 2026] [--per-kind 100] [--kinds form,table,line,shapes,multi]

DIR/pages/*.png       the pages, lossless
DIR/questions.jsonl   one {id, kind, images, question, answer} a line; image paths are relative to DIR

The same seed gives the same questions everywhere, but the same pixels only with the same FreeType: glyphs are rasterised
a little differently by other versions. That is why the evaluation set is committed and not made again.
"""
import argparse
import json
from pathlib import Path

from PIL import Image

from tinydoc import TinyDoc

KINDS = "form,table,line,shapes,multi"


def forms(page):
    """The ways to store exactly these pixels: by palette (at most 256 colours), grey, RGB."""
    rgb = page.convert("RGB").tobytes()
    colors = page.getcolors(256)
    if colors:
        order = [c for _, c in sorted(colors, reverse=True)]
        index = {bytes(c): i for i, c in enumerate(order)}
        by_palette = Image.frombytes("P", page.size, bytes(index[rgb[i:i + 3]] for i in range(0, len(rgb), 3)))
        by_palette.putpalette([v for c in order for v in c])
        yield by_palette
    grey = page.convert("L")
    yield grey if grey.convert("RGB").tobytes() == rgb else page


def save_page(page, path):
    """Lossless PNG in whichever form is smallest."""
    sizes = []
    for image in forms(page):
        image.save(path, optimize=True)
        sizes.append((path.stat().st_size, image))
    min(sizes, key=lambda s: s[0])[1].save(path, optimize=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--seed", type=int, default=2026)
    ap.add_argument("--per-kind", type=int, default=100)
    ap.add_argument("--kinds", default=KINDS)
    a = ap.parse_args()
    (a.out / "pages").mkdir(parents=True, exist_ok=True)
    with open(a.out / "questions.jsonl", "w", encoding="utf-8") as f:
        for k, kind in enumerate(a.kinds.split(",")):
            gen = TinyDoc(seed=a.seed + k)
            for i in range(a.per_kind):
                sample = gen.sample(kind, max_turns=1)
                question, answer = sample.turns[0]
                name = f"{kind}-{i:03d}"
                images = []
                for p, page in enumerate(sample.pages):
                    images.append(f"pages/{name}-{p}.png")
                    save_page(page, a.out / images[-1])
                row = {"id": name, "kind": kind, "images": images, "question": question, "answer": answer}
                f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
