#!/usr/bin/env python3
"""Fails when a document has a broken link, anchor or image, is long without a list of contents, grew beyond its words, or the roadmap lost its form.

Documents are all Markdown files of the repository; names of documents in code and scripts must exist, too.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_WORDS = {"README.md and docs": 42000, "docs/studies": 14000}
ROADMAP = "docs/roadmap.md"
MOST_ROADMAP_LINES, MOST_NEXT_ROWS = 120, 7
LINES_WITHOUT_CONTENTS = 200
LINK = re.compile(r"!?\[(?:[^][]|\[[^]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)\)|<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
DOCUMENT = re.compile(r"\bdocs/[\w./-]*\.md\b")


def files(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def read(name):
    return (ROOT / name).read_text(errors="replace")


def headings(text):
    """(level, heading, the anchor that GitHub makes of it) for each heading of a document."""
    times = {}
    for marks, heading in re.findall(r"^(#{1,6}) +(.+?) *#*$", FENCE.sub("", text), re.M):
        heading = re.sub(r"!?\[([^][]*)\]\([^()]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        n = times[slug] = times.get(slug, -1) + 1
        yield len(marks), heading, f"{slug}-{n}" if n else slug


def anchors(text):
    return {*re.findall(r'<a (?:id|name)="([^"]+)"', text), *(anchor for _, _, anchor in headings(text))}


def contents(name):
    """Sections of a long document to which no link before the first of them leads."""
    text = read(name)
    if text.count("\n") <= LINES_WITHOUT_CONTENTS: return
    links = re.findall(r"\]\(#([^)]+)\)", re.split(r"^## ", text, maxsplit=1, flags=re.M)[0])
    for level, heading, anchor in headings(text):
        if level == 2 and anchor not in links:
            yield f"{name}: more than {LINES_WITHOUT_CONTENTS} lines, and its list of contents has no link to '{heading}': write [{heading}](#{anchor}) before the first section, ' · ' between the links"


def links(name):
    """Broken links of one document."""
    text = CODE.sub("", FENCE.sub("", read(name)))
    for groups in LINK.findall(text):
        target = groups[0] or groups[1]
        if re.match(r"[a-z]+:", target): continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists():
            yield f"{name}: the link {target} leads to no file"
        elif not file.resolve().is_relative_to(ROOT):
            yield f"{name}: the link {target} leads out of the repository"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{name}: {path or name} has no heading #{anchor}"


def names(name):
    """Documents that code, scripts and other documents name, and that are not there."""
    for document in sorted(set(DOCUMENT.findall(read(name)))):
        if not (ROOT / document).exists(): yield f"{name}: there is no {document}"


def words(documents):
    studies = [d for d in documents if d.startswith("docs/studies/")]
    others = [d for d in documents if d == "README.md" or d.startswith("docs/") and d not in studies]
    for where, of in zip(MOST_WORDS, (others, studies)):
        n = sum(len(read(name).split()) for name in of)
        if n > MOST_WORDS[where]: yield f"{where}: {n:,} words, at most {MOST_WORDS[where]:,}"


def roadmap():
    text = read(ROADMAP)
    if (n := text.count("\n")) > MOST_ROADMAP_LINES: yield f"{ROADMAP}: {n} lines, at most {MOST_ROADMAP_LINES}"
    for issue in re.findall(r"\bissues? +#?\d+|(?<!\w)#\d+", text, re.I): yield f"{ROADMAP}: '{issue}' cannot be read from outside"
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    if [s.split("\n")[0] for s in sections] != ["Next", "Known limits", "Tried without gain"]:
        yield f"{ROADMAP}: expected the sections Next, Known limits, Tried without gain"
    rows = len(re.findall(r"^\|", sections[0], re.M)) - 2 if sections else 0
    if rows > MOST_NEXT_ROWS: yield f"{ROADMAP}: Next has {rows} rows, at most {MOST_NEXT_ROWS}"
    types = set()
    for header in files("src/*.h"): types.update(re.findall(r"^ *(?:class|struct|enum class|using) (\w+)", read(header), re.M))
    for code in CODE.findall(text):
        for word in re.findall(r"\b[A-Z]\w*[a-z]\w*\b", code):
            if word in types: yield f"{ROADMAP}: {word} is a class; say it in words of the user"


def main():
    documents = files("*.md")
    wrong = [fault for name in documents for fault in links(name)]
    wrong += [fault for name in files("*.md", "*.cc", "*.h", "*.py", "*.sh", "*.js", "*.cmake", "*CMakeLists.txt", "Makefile", "deploy/*") for fault in names(name)]
    wrong += [fault for name in documents if name.startswith("docs/") for fault in contents(name)]
    wrong += [*words(documents), *roadmap()]
    print("\n".join(wrong) if wrong else "ok: documents")
    return bool(wrong)


if __name__ == "__main__": sys.exit(main())
