#!/usr/bin/env python3
"""Fails when the texts of this repository have more of the words that docs/words.md replaces than LIMITS says.

WORDS are counted in all of src, docs, tools, studies, deploy, README.md and CHANGELOG.md, code and strings included.
CONSTRUCTIONS are counted in prose: comments, docstrings, help of flags, texts of the page, Markdown without code.
The limits are a ratchet: --tighten lowers them after a change that removes some, nothing raises them.
"""
import argparse
import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = ("src", "docs", "tools", "studies", "deploy", "README.md", "CHANGELOG.md")
LEFT_OUT = re.compile(r"docs/words\.md|tools/check_words\.py|.*\.(png|jinja|json|safetensors|svg)$")
WORDS = ("nobody", "whoever", "somebody", "anew", "behind", "whom", "is had", "goes on like", "what is there", "but for", "gives way", "is let go", "rehearsal",
         "in turn", "picture", "pictures")
# The counts that are left; --tighten lowers them to the counts of today, and never raises one.
LIMITS = {
    "nobody": 5,
    "whoever": 1,
    "somebody": 1,
    "anew": 2,
    "behind": 2,
    "whom": 1,
    "is had": 0,
    "goes on like": 0,
    "what is there": 0,
    "but for": 1,
    "gives way": 0,
    "is let go": 0,
    "rehearsal": 0,
    "in turn": 8,
    "picture": 81,
    "pictures": 73,
    "what": 182,
    "those": 194,
    "takes": 168,
    "goes": 70,
    "wanted": 3,
    "clause": 372,
}
VERBS = ("is|are|was|were|has|had|have|does|did|may|can|cannot|could|will|would|must|needs?|follows|stands?|comes?|came|lies|stays?|stayed|remains?|remained|goes|went|decides|"
         "differs|outlives|becomes|became|makes?|made|limits|holds|happens|happened|keeps|reads|fits|counts|belongs|changes|changed|begins|ends|costs|runs|leaves|left|cannot")
CONSTRUCTIONS = {
    # "what is kept" for the kept tokens: the clause has no noun.
    "what": rf"\bwhat (?:\w+ly |no longer |still |then )?(?:{VERBS})\b(?![^\n.\"]{{0,60}}\?)",
    # The pronoun: "those of the last layer" for the rows of the last layer.
    "those": r"\bthose(?= (?:of|that|which|who|in|on|at|by|to|for|from|before|after|whose|with|without|under|below|above|around|between|beside|of|are|were|is|not|so|already|kept|known|taken|it|they|the)\b|[,.;:)])",
    # For accepts, needs or uses; of time and space it is usual.
    "takes": r"\btakes?\b(?! (?:about|up|time|long|longer|more|less|fewer|too|part|turns|place|over|effect|care|advantage|(?:milli|micro)?seconds|minutes|hours|half|as long|one|two|n |\d|only|eleven))",
    # For is evicted, leaves, continues.
    "goes": r"\b(?:goes|go|gone)\b(?! (?:to|into|through|beyond|over|out|up|down)\b)",
    "wanted": r"\bwanted\b(?![=`])",
    # A parameter described by a clause without a subject: "// of the last layer", --seed "of the choice of cases".
    "clause": r"[;,{)][ \t]+// of \w|\.help =\s*\"(?:of|which|where|whose) |\w,\s+\"(?:of|which|whose) \w+ ",
}


def files():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if not LEFT_OUT.match(name) and (ROOT / name).is_file()]


# ---- prose -----------------------------------------------------------------------------------------------------------

CPP = re.compile(r"""//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|R"\w*\(.*?\)\w*"|(?P<string>"(?:[^"\\\n]|\\.)*")|'(?:[^'\\\n]|\\.)+'""", re.S)
JS = re.compile(r"""(?<![:\\/])//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|(?P<string>'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)""", re.S)
HELP = re.compile(r"src/cli/|src/api/request_field_table\.cc|src/policy/registry\.cc")
SENTENCE = re.compile(r"\w+ \w+ \w+")


def of_code(text, name):
    """(offset, text) of comments, and of sentences in strings where these are read by users."""
    for match in (JS if name.endswith((".js", ".mjs", ".css")) else CPP).finditer(text):
        for kind in ("line", "block", "string"):
            found = match.group(kind)
            if found is None or (kind == "string" and not (SENTENCE.search(found) and (HELP.match(name) or name.startswith("src/server/page/")))):
                continue
            yield match.start(kind), found


def of_python(text):
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield starts[token.start[0] - 1] + token.start[1], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            yield starts[node.body[0].lineno - 1], ast.get_source_segment(text, node.body[0].value)
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield starts[node.value.lineno - 1], ast.get_source_segment(text, node.value)


def prose(name, text):
    """Pieces (offset, text) of a file that people read."""
    if name.endswith((".cc", ".h", ".js", ".mjs", ".css")):
        return list(of_code(text, name))
    if name.endswith(".py"):
        return list(of_python(text))
    if name.endswith((".md", ".html")):
        blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))  # keeps the offsets
        return [(0, re.sub(r"`[^`\n]*`", blank, re.sub(r"^```.*?^```", blank, text, flags=re.S | re.M)))]
    return [(match.start(), match.group(0)) for match in re.finditer(r"(?<![^\s])#[^\n]*", text)]


# ---- counting --------------------------------------------------------------------------------------------------------


def places_of():
    """{word or construction: [(file, offset)]}."""
    found = {name: [] for name in LIMITS}
    words = re.compile(r"\b(" + "|".join(WORDS) + r")\b", re.I)
    patterns = {name: re.compile(pattern, re.I) for name, pattern in CONSTRUCTIONS.items()}
    for name in files():
        text = (ROOT / name).read_text(errors="replace")

        for match in words.finditer(text):
            found[match.group(0).lower()].append((name, match.start()))
        if name.endswith((".cc", ".h")):
            for match in patterns["clause"].finditer(text):
                found["clause"].append((name, match.start()))
        for offset, piece in prose(name, text):
            for kind in set(patterns) - {"clause"}:
                for match in patterns[kind].finditer(piece):
                    found[kind].append((name, offset + match.start()))
    return found


def line_at(name, offset):
    text = (ROOT / name).read_text(errors="replace")
    begin, end = text.rfind("\n", 0, offset) + 1, text.find("\n", offset)
    return f"{name}:{text.count(chr(10), 0, offset) + 1}: {text[begin : end if end >= 0 else None].strip()}"


def tighten(found):
    path = pathlib.Path(__file__)
    text = path.read_text()
    for name, limit in LIMITS.items():
        text = text.replace(f'"{name}": {limit},', f'"{name}": {min(limit, len(found[name]))},')
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", metavar="NAME", choices=list(LIMITS), help="print every place of this word or construction")
    parser.add_argument("--tighten", action="store_true", help="lower the limits in this file to the counts of today")
    args = parser.parse_args()
    found = places_of()
    if args.list:
        print("\n".join(line_at(*place) for place in found[args.list]))
        return 0
    if args.tighten:
        tighten(found)
    wrong = [f"'{name}': {len(found[name])} times, at most {limit}; see docs/words.md and tools/check_words.py --list '{name}'" for name, limit in LIMITS.items() if len(found[name]) > limit]
    fewer = [f"{name} {limit} -> {len(found[name])}" for name, limit in LIMITS.items() if len(found[name]) < limit]
    print("\n".join(wrong) if wrong else "ok: words" + (f" (tools/check_words.py --tighten: {', '.join(fewer)})" if fewer and not args.tighten else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
