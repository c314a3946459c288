#!/usr/bin/env python3
"""Prints generated tables: fixtures (their README), KV sizes (docs/models.md), and with --golden the errors of a golden test's output.

  python3 tools/model_table.py                               (the tables that a test compares with the page)
  build/release/tests/vlcache_golden_test | python3 tools/model_table.py --golden -
"""
import argparse
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ORDER = ("qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "paddleocr_vl", "glm_ocr", "idefics3", "smolvlm", "nanovlm", "llava_next", "llava", "qwen3", "qwen2",
         "mistral", "llama", "baichuan", "gpt2")
# Layers, kv heads, head size, with their source.
PUBLISHED = [
    ("Qwen3-VL", "arXiv:2505.09388 (the language models), `bench/shapes`",
     [("2B", 28, 8, 128), ("4B", 36, 8, 128), ("8B", 36, 8, 128), ("32B", 64, 8, 128), ("30B-A3B", 48, 4, 128), ("235B-A22B", 94, 4, 128)]),
    ("Qwen2.5-VL", "arXiv:2502.13923, table 1; 32B: arXiv:2412.15115", [("3B", 36, 2, 128), ("7B", 28, 4, 128), ("32B", 64, 8, 128), ("72B", 80, 8, 128)]),
    ("Qwen2-VL", "arXiv:2407.10671 (the language models)", [("2B", 28, 2, 128), ("7B", 28, 4, 128), ("72B", 80, 8, 128)]),
    ("PaddleOCR-VL", "its configuration class in transformers", [("0.9B", 18, 2, 128)]),
    ("GLM-OCR", "its config.json; sections [16, 24, 24] fill 64 pairs", [("0.9B", 16, 8, 128)]),
    ("granite-docling", "its config.json", [("258M", 30, 3, 64)]),
    ("nanoVLM", "its config.json", [("222M", 30, 3, 64), ("460M", 32, 5, 64)]),
    ("GPT-2", "its config.json", [("124M", 12, 12, 64), ("1.5B", 48, 25, 64)]),
    ("Baichuan2", "arXiv:2309.10305", [("7B", 32, 32, 128)]),
    ("SmolVLM2", "its config.json", [("256M", 30, 3, 64), ("500M", 32, 5, 64), ("2.2B", 24, 32, 64)]),
]


def cases():
    """{family: case.json of its fixtures by name}, families in the order above, then by name."""
    found = collections.defaultdict(list)
    for path in sorted(ROOT.glob("tests/fixtures/models/*/case.json")):
        case = json.loads(path.read_text())
        found[case["family"]].append(case)
    return {f: found[f] for f in sorted(found, key=lambda f: (ORDER.index(f) if f in ORDER else len(ORDER), f))}


def fixtures():
    yield "| `model_type` | fixture | what it covers |"
    yield "|---|---|---|"
    for family, of_family in cases().items():
        for case in of_family:
            yield f"| `{family}` | `{case['name']}` | {case['covers']} |"


def sizes():
    yield "| family | size | layers × kv heads × head size | KV bytes of a token, bf16 |"
    yield "|---|---|---|---:|"
    for family, _, models in PUBLISHED:
        for size, layers, heads, dim in models: yield f"| {family} | {size} | {layers} × {heads} × {dim} | {2 * layers * heads * dim * 2:,} |"


def errors(text):
    """The worst of the backends, of tests that compute whole models."""
    if "[  PASSED  ]" not in text or "[  FAILED  ]" in text:
        sys.exit("expected the output of a golden test that passed")
    text = text.split("TextPartsEqualTransformers/")[0]
    worst, setting = collections.defaultdict(lambda: collections.defaultdict(float)), None
    for line in text.splitlines():
        head = re.match(r"\| (\w+) (float32|bfloat16|f32|bf16) \| vision", line)
        if head:
            setting = head[2]
        row = re.match(r"\| (\w+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| \d+ of \d+ \|", line)
        if row:
            for name, value in zip(("vision", "hidden", "logits", "kl"), row.groups()[1:]):
                worst[row[1]][setting, name] = max(worst[row[1]][setting, name], float(value))
    yield "| `model_type` | fixtures | vision, f32 | hidden states, f32 | logits, f32 | KL, bf16 | greedy tokens |"
    yield "|---|---|---|---|---|---|---|"
    for family, of_family in cases().items():
        if family not in worst:
            yield f"| `{family}` | {len(of_family)} | not run |  |  |  |  |"
            continue
        w, n = worst[family], sum(len(c["greedy"]) for c in of_family)
        vision = f"{w['f32', 'vision']:.1e}" if w["f32", "vision"] else "–"
        yield f"| `{family}` | {len(of_family)} | {vision} | {w['f32', 'hidden']:.1e} | {w['f32', 'logits']:.1e} | {w['bf16', 'kl']:.1e} | {n} of {n} |"


TABLES = {"fixtures": ("tools/fixtures/models/README.md", fixtures), "sizes": ("docs/models.md", sizes)}


def block(page, name):
    """The lines of a page between <!-- NAME --> and the next blank line."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n(\n|$)", page, re.S)
    return found[1].splitlines() if found else []


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--golden", help="output of vlcache_golden_test, - for standard input: its table of errors instead")
    a = a.parse_args()
    if a.golden:
        print("\n".join(errors(sys.stdin.read() if a.golden == "-" else pathlib.Path(a.golden).read_text())))
    else:
        print("\n\n".join(f"<!-- {name} -->\n" + "\n".join(table()) for name, (_, table) in TABLES.items()))


if __name__ == "__main__":
    main()
