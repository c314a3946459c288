#!/usr/bin/env python3
"""Fails on files over 700 lines, functions over 100 and policies over 150 (docs/design.md: files a person can take in).
"""
import pathlib
import re
import sys

MAX_FILE, MAX_FUNCTION, MAX_POLICY = 700, 100, 150
ROOT = pathlib.Path(__file__).resolve().parent.parent


CODE_ONLY = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
NOT_A_FUNCTION = re.compile(r"^\s*(namespace|class|struct|enum|union|extern|if|for|while|switch|do|else|try)\b|=\s*$")


def functions(text):
    """(first line, length) of every outermost function body, found by counting braces."""
    text = CODE_ONLY.sub(lambda m: "\n" * m[0].count("\n"), text)
    stack, head, line = [], "", 1
    for i, c in enumerate(text):
        if c == "{":
            is_function = ")" in head and not NOT_A_FUNCTION.search(head) and not any(f for f, _, _ in stack)
            stack.append((is_function, line - head.lstrip().count("\n"), head))
            head = ""
        elif c == "}" and stack:
            is_function, start, head_before = stack.pop()
            if is_function and re.match(r"\s*[,{]", text[i + 1:i + 200]):  # a member's initializer: the body is yet to come
                head = head_before
                continue
            if is_function:
                yield start, line - start + 1
            head = ""
        elif c == ";":
            head = ""
        else:
            head += c
        line += c == "\n"


def problems():
    for file in sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("src/**/*.cc"), *ROOT.glob("tests/**/*.cc"),
                        *ROOT.glob("tools/**/*.py"), *ROOT.glob("tools/**/*.sh")]):
        name = file.relative_to(ROOT).as_posix()
        lines = file.read_text().splitlines()
        limit = MAX_POLICY if re.match(r"src/policy/(scorers|allocators|decode_rules|methods)/", name) else MAX_FILE
        if len(lines) > limit:
            yield f"{name}: {len(lines)} lines, at most {limit}"
        if file.suffix in (".cc", ".h"):
            for line, length in functions(file.read_text()):
                if length > MAX_FUNCTION:
                    yield f"{name}:{line}: a function of {length} lines, at most {MAX_FUNCTION}"
        if lines and file.suffix == ".h" and not lines[0].startswith("//"):
            yield f"{name}:1: the first line does not say what the file is for"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) if found else "ok: file and function sizes")
    sys.exit(bool(found))
