#!/usr/bin/env python3
"""Draws the SVGs of README and docs: `tools/draw.py` writes docs/images/*.svg, `--check` fails where one differs.

Each drawing is a function that returns a Drawing; all of them are in DRAWINGS. The layers are those of check_layers.py.
Every SVG has a background of its own and two sets of colours, so that it is legible on light and dark pages.
"""
import html
import pathlib
import sys

import check_layers

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "docs/images"
# kind of a box -> fill, border, in light and in dark; the kinds are the same in all drawings
KINDS = {
    "plain": ("#f3f5f8", "#8c959f", "#1c2430", "#6b7785"),
    "text": ("#dbe8fb", "#3572c6", "#17304f", "#5b9bf0"),  # tokens of text, and their KV
    "image": ("#d6f0dc", "#2f8a4b", "#143d24", "#4db870"),  # an image, and its KV as it was computed
    "other": ("#e9e2f7", "#7a5bb8", "#2f2350", "#a98be8"),  # another image
    "new": ("#fbdcb6", "#b8690f", "#5a3608", "#eda04a"),  # recomputed
    "gone": ("none", "#8c959f", "none", "#6b7785"),  # evicted, or left out: dashed
}
PAGE = ("#ffffff", "#0d1117")
INK = ("#1f2328", "#e6edf3")
SOFT = ("#57606a", "#9da7b3")


def style():
    def rules(k):
        boxes = "".join(f".{name}{{fill:{colours[2 * k]};stroke:{colours[2 * k + 1]}}}" for name, colours in KINDS.items())
        return f".page{{fill:{PAGE[k]}}}.ink{{fill:{INK[k]}}}.soft{{fill:{SOFT[k]}}}.line{{stroke:{SOFT[k]};fill:none}}.head{{fill:{SOFT[k]}}}{boxes}"

    font = "text{font:13px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif}.strong{font-weight:600}.small{font-size:12px}"
    return f"<style>{font}.gone{{stroke-dasharray:4 3}}{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}</style>"


class Drawing:
    """Boxes, texts and arrows on a page; coordinates are pixels from the upper left corner."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def text(self, x, y, text, style="ink", anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{html.escape(text, quote=False)}</text>')

    def box(self, x, y, width, height, kind="plain", *lines, radius=4):
        """A rectangle with lines of text in its middle: the first one strong, the others soft."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" class="{kind}"/>')
        first = y + height / 2 - 9 * (len(lines) - 1) + 5
        for i, line in enumerate(lines):
            self.text(x + width / 2, round(first + 18 * i, 1), line, "ink strong" if i == 0 else "soft small", "middle")

    def cells(self, x, y, n, kind, size=16):
        for i in range(n):
            self.box(x + i * size, y, size, size, kind, radius=0)

    def arrow(self, *points, both=False):
        """A line through points, with a head at its end; at both ends if asked for."""
        path = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self.parts.append(f'<polyline points="{path}" class="line" stroke-width="1.4" marker-end="url(#head)"{start}/>')

    def legend(self, y, *entries, x=20):
        for kind, text in entries:
            self.box(x, y, 14, 14, kind, radius=2)
            self.text(x + 20, y + 12, text, "soft small")
            x += 44 + 6.6 * len(text)

    def svg(self):
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0,0.5 L8,4 L0,7.5 z" class="head"/></marker>'
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(self.title)}">', f"<title>{html.escape(self.title)}</title>",
                 style(), f"<defs>{head}</defs>", f'<rect class="page" width="{self.width}" height="{self.height}" rx="6"/>', *self.parts, "</svg>"]
        return "\n".join(lines) + "\n"


def system():
    """From a client to the kernels, with the caches at the side."""
    d = Drawing(860, 486, "vlcache: a request passes through the scheduler and the model; its KV cache is cut by a policy and filled by reuse")
    d.box(20, 20, 264, 52, "plain", "serve", "OpenAI's and Anthropic's APIs, web page")
    d.box(298, 20, 264, 52, "plain", "run · chat", "command line, lines of requests")
    d.box(576, 20, 264, 52, "plain", "inspect · eval · tune", "reports on KV, accuracy, reuse")
    d.box(20, 100, 820, 52, "text", "Prompt", "template, PDFs and videos to images, tiles, tokens")
    d.box(20, 180, 820, 52, "plain", "Scheduler", "admits, batches and preempts requests; plans each step")
    for x in (152, 430, 708):
        d.arrow((x, 72), (x, 99))
    d.arrow((430, 152), (430, 179))
    d.box(298, 260, 264, 52, "plain", "Step", "vision encoder, language model, sampler")
    d.box(298, 340, 264, 52, "text", "KV cache", "pages for each layer and KV head")
    d.box(20, 260, 236, 52, "image", "Reuse, in memory", "prefixes, image KV, embeddings")
    d.box(20, 340, 236, 52, "image", "Tiers", "folder on disk, Redis")
    d.box(604, 340, 236, 52, "new", "Policy", "chooses the slots that are kept")
    d.box(20, 420, 820, 46, "plain", "Kernels", "AMX, AVX-512, AVX2, scalar; weights in 16, 8 and 4 bits")
    d.arrow((430, 232), (430, 259))
    d.arrow((430, 313), (430, 339), both=True)
    d.arrow((430, 392), (430, 419))
    d.arrow((138, 313), (138, 339), both=True)
    d.arrow((257, 286), (277, 286), (277, 366), (297, 366), both=True)
    d.arrow((603, 366), (563, 366))
    d.text(583, 358, "evicts", "soft small", "middle")
    return d


# folder -> column of the drawing of the layers, from 0 at the left to 1, and what it holds
HOLDS = {
    "cli": (0.5, "commands, flags"),
    "server": (0.5, "HTTP, protocols, web page"),
    "analysis": (0.5, "reports, eval, tune"),
    "api": (0.5, "requests of every front end"),
    "engine": (0.5, "from a prompt to an answer"),
    "grammar": (0.88, "schemas, token masks"),
    "reuse": (0.29, "KV that outlives a request"),
    "model": (0.74, "the forward pass"),
    "store": (0.09, "disk, Redis"),
    "cache": (0.29, "pages and slots"),
    "policy": (0.48, "which KV is kept"),
    "ops": (0.48, "all arithmetic: ref, cpu"),
    "io": (0.82, "files to typed views"),
    "base": (0.48, "tensors, errors, threads, files"),
    "video_helper": (0.88, "a program of its own"),
}


def layers():
    """MAY_INCLUDE as a graph without the arrows that follow from others; each folder as high as its includers allow."""
    folders = {name: {to for to in may if "/" not in to} for name, may in check_layers.MAY_INCLUDE.items() if "/" not in name}

    def reach(name):
        return set().union(*({to} | reach(to) for to in folders[name]))

    def depth(name):
        return 1 + max((depth(by) for by, may in folders.items() if name in may), default=-1)

    d = Drawing(860, 74 * (1 + max(map(depth, folders))) + 32, "Layers: each folder of src may include those below it that its arrows lead to")
    at = {name: (round(20 + 820 * HOLDS[name][0]), 20 + 74 * depth(name)) for name in folders}
    direct = {name: {to for to in may if not any(to in reach(via) for via in may)} for name, may in folders.items()}
    for to, (x, y) in at.items():
        includers = sorted((name for name in folders if to in direct[name]), key=lambda name: at[name][0])
        for i, name in enumerate(includers):
            d.arrow((at[name][0], at[name][1] + 44), (round(x + 70 * (i - (len(includers) - 1) / 2)), y - 1))
    for name, (x, y) in at.items():
        width = 28 + 7 * max(len(HOLDS[name][1]), 16)
        d.box(x - width / 2, y, width, 44, "text" if name in ("cache", "policy", "reuse") else "plain", name, HOLDS[name][1])
    left_out = [f"{name} may not include {to}" for name in folders for to in sorted(reach(name) - folders[name])]
    d.text(20, d.height - 12, "What arrows lead to may be included" + (", except: " + "; ".join(left_out) if left_out else ""), "soft small")
    return d


def row(d, y, label, *parts, x=150, size=16):
    """A prompt: parts are (kind, number of tokens, label)."""
    d.text(20, y + 13, label, "ink small")
    for kind, n, name in parts:
        d.box(x, y, n * size - 3, 20, kind, radius=3)
        d.text(x + (n * size - 3) / 2, y + 14, name, "ink small", "middle")
        x += n * size


def reuse():
    """The three kinds of reuse, as one prompt and three later ones."""
    d = Drawing(860, 268, "Three kinds of reuse: an exact prefix, the encoder's output, the KV of an image")
    row(d, 20, "first prompt", ("new", 6, "text A"), ("new", 26, "image"), ("new", 9, "question 1"))
    d.text(150, 60, "all computed", "soft small")
    row(d, 80, "1 exact prefix", ("image", 6, "text A"), ("image", 26, "image"), ("new", 9, "question 2"))
    d.text(150, 120, "the same beginning: loaded as it was computed", "soft small")
    row(d, 140, "2 encoder output", ("new", 6, "text B"), ("new", 26, "image: encoder skipped, KV computed"), ("new", 9, "question 2"))
    d.text(150, 180, "another beginning: the image's embeddings are loaded", "soft small")
    row(d, 200, "3 KV of an image", ("new", 6, "text B"), ("new", 2, ""), ("image", 24, "image: KV loaded, keys rotated"), ("new", 9, "question 2"))
    d.text(150, 240, "another beginning: a few tokens of the image are recomputed", "soft small")
    d.legend(246, ("new", "computed"), ("image", "loaded"), x=620)
    return d


def stack(d, x, y, kinds, size=14, layers=6):
    """Columns of cells, one a token, rows from the first layer at the bottom to the last on top; kinds: (kind, n) or functions of (layer, i)."""
    for kind, n in kinds:
        for layer in range(layers):
            for i in range(n):
                name = kind(layer, i) if callable(kind) else kind
                d.box(x + i * size, y + (layers - 1 - layer) * size, size - 2, size - 2, name, radius=1)
        x += n * size + 6
    return x


def kv_recorded():
    """First sight: the image is computed after text A, and recorded before its keys are rotated."""
    d = Drawing(860, 300, "First prompt: the image is computed, and its K before rotation and V are recorded layer by layer")
    row(d, 20, "first prompt", ("text", 8, "text A"), ("image", 16, "page P"), ("text", 8, "question 1"))
    x = stack(d, 150, 62, [("text", 9), ("image", 18), ("text", 9)])
    d.text(20, 76, "last layer", "soft small")
    d.text(20, 144, "first layer", "soft small")
    d.text(x + 12, 100, "KV of the sequence:", "soft small")
    d.text(x + 12, 116, "keys rotated to", "soft small")
    d.text(x + 12, 132, "their positions", "soft small")
    d.arrow((408, 150), (408, 187))
    d.text(420, 172, "K before rotation, and V", "soft small")
    d.box(268, 190, 280, 40, "image", "record of P", "in memory: K, V of each layer")
    d.box(268, 250, 280, 40, "image", "records of P", "in the tiers: embeddings; each layer")
    d.arrow((408, 230), (408, 249))
    d.box(20, 190, 200, 40, "plain", "key", "SHA-256 of the pixels")
    d.arrow((220, 210), (267, 210))
    d.text(560, 244, "written in the background", "soft small")
    return d


def kv_moved():
    """Second prompt: another beginning; the recorded keys are rotated to new positions."""
    d = Drawing(860, 244, "Second prompt: the page has moved; its recorded keys are rotated to the new positions")
    row(d, 20, "first prompt", ("text", 8, "text A"), ("image", 16, "page P"), ("text", 8, "question 1"))
    d.box(282, 70, 252, 40, "image", "record of P", "K without a position, V")
    d.arrow((408, 42), (408, 69))
    d.arrow((408, 110), (564, 149))
    d.text(500, 124, "each key rotated by its new position", "soft small")
    row(d, 152, "second prompt", ("text", 5, "text B"), ("other", 13, "page Q"), ("image", 16, "page P"), ("text", 9, "question 2"))
    d.text(150, 192, "computed; Q is recorded", "soft small")
    d.text(438, 192, "a hit by its pixels, at any position", "soft small")
    d.text(694, 192, "computed", "soft small")
    d.legend(216, ("text", "text"), ("other", "new image"), ("image", "known image"))
    return d


def kv_recomputed():
    """Which rows of the second prompt the layers compute."""
    d = Drawing(860, 246, "Rows that each layer computes: all of the text and of the new image, ever fewer of the known image")
    n = 26
    depth = [6, 6, 5, 4, 3, 2, 1] + [0] * (n - 7)  # tokens that pass through the first layers

    def known(layer, i):
        return "new" if layer < depth[i] else "image"

    row(d, 20, "second prompt", ("text", 4, "text B"), ("other", 8, "page Q"), ("image", 23, "page P"), ("text", 8, "question 2"))
    stack(d, 150, 58, [("new", 4), ("new", 9), (known, n), ("new", 9)])
    d.text(20, 72, "last layer", "soft small")
    d.text(20, 140, "first layer", "soft small")
    d.text(20, 166, "No token of P has seen text B and Q; the KV of the first ones differs most. They enter the first layers like new tokens,", "soft small")
    d.text(20, 182, "and their rows are dropped as the plan says. Computed rows attend to loaded and computed KV alike.", "soft small")
    d.legend(212, ("new", "computed in this prompt"), ("image", "loaded from the record"))
    return d


def kv_evicted():
    """Between the second and the third prompt: memory is short, the record remains in the tier."""
    d = Drawing(860, 306, "Memory is short: the entry that saves least for its bytes is evicted; the tier still has the record")

    def memory(y, *entries):
        x = 150
        for kind, width, name, note in entries:
            d.box(x, y, width, 40, kind, name, note)
            x += width + 8

    d.text(20, 44, "memory", "ink small")
    memory(20, ("text", 160, "prefix", "text B, Q, P"), ("other", 170, "KV of Q", "more hits"), ("image", 190, "KV of P", "saves least for its bytes"), ("image", 120, "embeddings", "of P"))
    d.text(20, 124, "page R arrives", "ink small")
    memory(100, ("text", 160, "prefix", "text B, Q, P"), ("other", 170, "KV of Q", "more hits"), ("gone", 190, "KV of P", "evicted"), ("image", 120, "embeddings", "of P"))
    d.arrow((573, 60), (573, 99))
    d.text(20, 204, "tier", "ink small")
    d.box(488, 180, 170, 40, "image", "record of P", "layer 1, 2, 3, …")
    d.arrow((573, 220), (573, 251))
    d.text(562, 240, "layer by layer, while earlier layers are computed", "soft small", "end")
    row(d, 254, "third prompt", ("text", 19, "text C"), ("image", 16, "page P"), ("text", 8, "question 3"))
    d.text(150, 294, "Without a tier, the embeddings are still a hit: the encoder is skipped, the KV of P is computed and recorded again.", "soft small")
    return d


DRAWINGS = {
    "system": system,
    "layers": layers,
    "reuse": reuse,
    "image-kv-recorded": kv_recorded,
    "image-kv-moved": kv_moved,
    "image-kv-recomputed": kv_recomputed,
    "image-kv-evicted": kv_evicted,
}

if __name__ == "__main__":
    wrong = []
    for name, draw in DRAWINGS.items():
        path, text = IMAGES / f"{name}.svg", draw().svg()
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(f"docs/images/{name}.svg is not what tools/draw.py draws (python3 tools/draw.py)")
    print("\n".join(wrong) if wrong else "ok: drawings")
    sys.exit(bool(wrong))
