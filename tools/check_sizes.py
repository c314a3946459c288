#!/usr/bin/env python3
"""Fails on files over 700 lines, functions over 100 and policies over 150 (docs/design.md: files a person can take in).

Functions are found by their closing brace in column 0 (clang-format puts it there), up to the last line that starts one.
"""
import pathlib
import re
import sys

MAX_FILE, MAX_FUNCTION, MAX_POLICY = 700, 100, 150
ROOT = pathlib.Path(__file__).resolve().parent.parent


def functions(lines):
    """(first line, length) of every block that opens in column 0 or, inside a class, in column 2, and closes there."""
    start = {}
    for i, line in enumerate(lines):
        for indent in (0, 2):
            if re.match(rf" {{{indent}}}[A-Za-z~].*[^;,]\s*$", line) and not re.match(r" *(namespace|class|struct|enum|union)\b", line):
                start.setdefault(indent, i)
            if re.match(rf" {{{indent}}}\}};?$", line) or line == "":
                if line != "" and indent in start:
                    yield start[indent] + 1, i - start[indent] + 1
                if line != "" or indent == 0 and i + 1 < len(lines) and re.match(r"[A-Za-z/]", lines[i + 1]):
                    start.pop(indent, None)


def problems():
    for file in sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("src/**/*.cc"), *ROOT.glob("tests/**/*.cc"),
                        *ROOT.glob("tools/**/*.py"), *ROOT.glob("tools/**/*.sh")]):
        name = file.relative_to(ROOT).as_posix()
        lines = file.read_text().splitlines()
        limit = MAX_POLICY if re.match(r"src/policy/(scorers|allocators|decode_rules)/", name) else MAX_FILE
        if len(lines) > limit:
            yield f"{name}: {len(lines)} lines, at most {limit}"
        if file.suffix in (".cc", ".h"):
            for line, length in functions(lines):
                if length > MAX_FUNCTION:
                    yield f"{name}:{line}: a function of {length} lines, at most {MAX_FUNCTION}"
        if lines and file.suffix in (".cc", ".h") and not lines[0].startswith("//"):
            yield f"{name}:1: the first line does not say what the file is for"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) if found else "ok: file and function sizes")
    sys.exit(bool(found))
