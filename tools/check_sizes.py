#!/usr/bin/env python3
"""Fails on files over 700 lines, functions over 100, policies over 150, and classes over 30 public functions or 20 data
members, unless a comment `// size: reason` stands above the class (docs/design.md: files a person can grasp).
"""
import pathlib
import re
import sys

MAX_FILE, MAX_FUNCTION, MAX_POLICY, MAX_PUBLIC, MAX_DATA = 700, 100, 150, 30, 20
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


COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
CLASS = re.compile(r"^(class|struct) (\w+)(?: final)?(?:\s*:\s[^{;]*)?\s*\{", re.M)
NESTED_TYPE = re.compile(r"\s*(template\s*<[^>]*>\s*)?(class|struct|enum|union)\b")
NO_MEMBER = re.compile(r"(using|typedef|friend|static_assert|static constexpr|static inline constexpr)\b")


def declarations(text):
    """The member declarations of a class, and its access specifiers; `text` begins after the opening brace. What stands
    in braces is cut to {}."""
    depth, declaration = 0, ""
    for i, c in enumerate(text):
        if c == "{":
            depth += 1
            declaration += "{" if depth == 1 else ""
        elif c == "}":
            depth -= 1
            if depth < 0:
                return
            if depth == 0:
                declaration += "}"
                is_body = re.search(r"\)\s*(const|noexcept|override|final|&|\s)*(:.*)?\{\}$", declaration, re.S)
                if is_body and not NESTED_TYPE.match(declaration) and not re.match(r"\s*[,;{]", text[i + 1:i + 50]):
                    yield declaration.strip()
                    declaration = ""
        elif depth == 0 and c == ";":
            yield declaration.strip()
            declaration = ""
        elif depth == 0:
            declaration += c
            if c == ":" and re.fullmatch(r"\s*(public|private|protected)\s*:", declaration):
                yield declaration.strip()
                declaration = ""


def class_sizes(text):
    """(line, name, public functions, data members) of every outermost class of a header, except classes with a reason."""
    code = COMMENT_OR_STRING.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    lines = text.splitlines()
    for match in CLASS.finditer(code):
        line = code.count("\n", 0, match.start())
        above = line
        while above > 0 and lines[above - 1].startswith("//"):
            above -= 1
        if any(c.startswith("// size:") for c in lines[above:line]):
            continue
        access, n_public, n_data = ("public" if match[1] == "struct" else "private"), 0, 0
        for declaration in declarations(code[match.end():]):
            if re.fullmatch(r"(public|private|protected)\s*:", declaration):
                access = declaration[:-1].strip()
                continue
            plain = re.sub(r"\s+", " ", declaration)
            if not plain or NO_MEMBER.match(plain) or NESTED_TYPE.match(plain):
                continue
            while plain != (shorter := re.sub(r"<[^<>]*>", "", plain)):
                plain = shorter
            head = re.split(r" = |\{", plain)[0]
            if "(" in head:
                n_public += access == "public"
            else:
                n_data += 1 + head.count(",")
        yield line + 1, match[2], n_public, n_data


def problems():
    for file in sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("src/**/*.cc"), *ROOT.glob("tests/**/*.cc"),
                        *ROOT.glob("tools/**/*.py"), *ROOT.glob("studies/**/*.py"), *ROOT.glob("tools/**/*.sh"), *ROOT.glob("studies/**/*.sh")]):
        name = file.relative_to(ROOT).as_posix()
        lines = file.read_text().splitlines()
        limit = MAX_POLICY if re.match(r"src/policy/(scorers|allocators|decode_rules|methods)/", name) else MAX_FILE
        if len(lines) > limit:
            yield f"{name}: {len(lines)} lines, at most {limit}"
        if file.suffix in (".cc", ".h"):
            for line, length in functions(file.read_text()):
                if length > MAX_FUNCTION:
                    yield f"{name}:{line}: a function of {length} lines, at most {MAX_FUNCTION}"
        if file.suffix == ".h":
            for line, type_name, n_public, n_data in class_sizes(file.read_text()):
                if n_public > MAX_PUBLIC or n_data > MAX_DATA:
                    yield (f"{name}:{line}: {type_name} has {n_public} public functions and {n_data} data members, at most "
                           f"{MAX_PUBLIC} and {MAX_DATA} without a reason (// size: ...)")
        if lines and file.suffix == ".h" and not lines[0].startswith("//"):
            yield f"{name}:1: the first line does not say what the file is for"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) if found else "ok: sizes of files, functions and classes")
    sys.exit(bool(found))
