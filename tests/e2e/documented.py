"""The commands of README and of the documents' first screens: how they are read, and what each must show.

A document's commands are the lines of its fenced blocks without a language or with a shell's name, without comments; in a
block with lines that begin with "$ ", these alone. A block of other text names its language.
"""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIRST_SCREEN = 60  # lines; README is read whole
LEFT_OUT = {"docs/start.md"}  # test_docs.Start runs all of its commands
SHELLS = ("", "sh", "bash", "console", "shell")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one command shows. Texts of `comment` stand in its comment as well, so that the comment is true."""
    command: str  # as the document has it; an ellipsis stands for any text
    output: tuple = ()  # regular expressions, each found in standard output or standard error
    comment: tuple = ()  # texts, each in the output and in the comment
    files: tuple = ()  # that exist afterwards, from the project's folder
    typed: str = ""  # standard input
    slow: bool = False  # longer than 5 s: `make readme` runs it
    elsewhere: str = ""  # why no test runs it

    def is_for(self, command):
        return re.fullmatch(".*".join(map(re.escape, self.command.split("…"))), command) is not None


@dataclasses.dataclass(frozen=True)
class Found:
    document: str
    command: str
    comment: str  # beside the command or above it


def cut_comment(line):
    """(command, comment) of a line of shell."""
    quote = None
    for i, c in enumerate(line):
        if quote is not None:
            quote = None if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == "#" and (i == 0 or line[i - 1].isspace()):
            return line[:i].rstrip(), line[i + 1:].strip()
    return line.rstrip(), ""


def blocks(text, n_lines):
    """The fenced blocks that begin in the first lines and hold commands, as lists of lines."""
    inside = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("```"):
            if inside is not None: inside.append(line.strip())
        elif inside is None:
            inside, wanted = [], line.strip()[3:].strip() in SHELLS and number <= n_lines
        else:
            if wanted: yield inside
            inside = None


def commands(document, text, n_lines):
    for block in blocks(text, n_lines):
        lines = re.sub(r"\\\n\s*", "", "\n".join(block)).splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        above = ""
        for line in filter(None, lines):
            command, comment = cut_comment(line)
            if command: yield Found(document, command, f"{above} {comment}".strip())
            above = "" if command else comment


def documents():
    """{document: [its commands, in their order]}; documents without commands have no entry."""
    found = {"README.md": list(commands("README.md", (ROOT / "README.md").read_text(), 1 << 30))}
    for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/server/*.md")]):
        name = str(path.relative_to(ROOT))
        found[name] = list(commands(name, path.read_text(), FIRST_SCREEN))
    return {name: of for name, of in found.items() if of and name not in LEFT_OUT}


PROGRAM = "build/release/vlcache"
INVOICE = "-m models/tinydoc -i models/tinydoc/demo/invoice.png"
URL = "http://127.0.0.1:8080"
TOTAL = r"TOTAL: 435\.75"

# {document: [what its commands show, in their order]}
SEEN = {
    "README.md": [
        Seen("make demo", elsewhere="it builds the program"),
        Seen(f"{PROGRAM} serve -m models/tinydoc"),
        Seen(f"curl -s {URL}/v1/chat/completions -d …What is the TOTAL?…", output=(TOTAL, )),
        Seen(f'{PROGRAM} run {INVOICE} "What is the TOTAL?"', comment=("TOTAL: 435.75", "KV 1.2 MiB")),
        Seen(f'{PROGRAM} run {INVOICE} --kv draft "What is the TOTAL?"', output=(TOTAL, r"\(pointer@draft\+global\)"), comment=("KV 0.2 MiB", )),
        Seen(f'{PROGRAM} inspect {INVOICE} "What is the TOTAL?" -o out/kept.html', output=(TOTAL, "10 % of the KV stayed"), comment=("the answer is the same", ),
             files=("out/kept.html", "out/kept-image1.png")),
        Seen(f'{PROGRAM} run {INVOICE} --cache-disk ~/.cache/vlcache "What is the DATE?"', output=("DATE: 2026-03-14", )),
        Seen(f'{PROGRAM} run {INVOICE} --cache-disk ~/.cache/vlcache --explain "What is the NAME?"', output=("NAME: MARIA", ), comment=("256 of 278 tokens were found", )),
        Seen(f"{PROGRAM} chat -m models/tinydoc --session page --cache-disk ~/.cache/vlcache", output=(TOTAL, ),
             typed="/image models/tinydoc/demo/invoice.png\nWhat is the TOTAL?\n/quit\n"),
        Seen(f"{PROGRAM} run -m models/tinydoc --requests models/tinydoc/demo/questions.jsonl --batch 4 --lookahead 16",
             output=('"id":"invoice-3","text":" ?' + TOTAL, '"id":"two-3","text":" ?GATE: 42"')),
        Seen(f"{PROGRAM} eval -m models/tinydoc --data tests/fixtures/tinydoc/questions.jsonl --samples 100 --kv draft --find 0.95 -o out/eval",
             output=("100 questions", r"Keep \d+ %"), files=("out/eval/report.html", ), slow=True),
        Seen(f"{PROGRAM} tune reuse -m models/tinydoc --data models/tinydoc/demo/questions.jsonl -o out/reuse_plan.json", output=("more are needed", ),
             files=("out/reuse_plan.json", "out/reuse_plan.html"), slow=True),
        Seen(f"{PROGRAM} simulate tests/corpus/trace/three.jsonl --block 4 --capacity 4,8,0", output=(r'"capacity":8,"blocks":7,"hits":3,"rate":0\.428', )),
        Seen(f"{PROGRAM} info -m models/tinydoc", output=("context +4096 tokens", "--cache-ram")),
        Seen("vlcache bench --random-weights bench/shapes/1.1b.json …", elsewhere="it takes many minutes and 3 GB; the table below it is its output"),
    ],
    "docs/adding-an-op.md": [
        Seen("ninja -C build/release vlcache_ops_test vlcache_ops_ref_test", elsewhere="it builds tests; `make test` runs the same ones"),
        Seen("build/release/src/ops/ref/vlcache_ops_ref_test && build/release/src/ops/vlcache_ops_test", elsewhere="as above"),
    ],
    "docs/benchmarks.md": [
        Seen("vlcache bench --random-weights bench/shapes/SHAPE.json …", elsewhere="SHAPE and D stand for the rows of the tables below it, which are its output"),
        Seen("llama-bench …", elsewhere="another project's program"),
    ],
    "docs/models.md": [
        Seen("hf download …", elsewhere="it needs a network"),
        Seen("vlcache run -m lusxvr/nanoVLM-222M --tokenizer cosmo2 …", elsewhere="its model is not here"),
    ],
    "docs/server/README.md": [
        Seen("vlcache serve -m models/tinydoc --port 8080"),
        Seen(f"curl -s {URL}/v1/chat/completions -d …Hello…", output=('"role":"assistant"', )),
        Seen(f'curl -sN {URL}/v1/chat/completions -d …"uuid": "invoice"…What is the TOTAL?…"stream": true…', output=(r'(?s)"4"}.*"3"}.*"5"}.*"\."}.*"7"}.*"5"}.*\n\ndata: \[DONE\]\s*$', )),
        Seen(f'curl -s {URL}/v1/chat/completions -d …"uuid": "invoice"…What is the DATE?…"kv": "draft"…', output=("DATE: 2026-03-14", '"mode":"pointer@draft\\+global"')),
        Seen(f'curl -s {URL}/v1/chat/completions -d …"json_schema"…', output=(r'\\"(good|bad)\\"', )),
        Seen(f'curl -s {URL}/v1/messages -d …"file_id": "invoice"…', output=(TOTAL, '"type":"message"')),
        Seen(f"curl -s {URL}/v1/messages/count_tokens -d …", output=(r'"input_tokens":[1-9]', )),
        Seen(f"curl -s {URL}/v1/responses -d …", output=('"object":"response"', )),
        Seen(f"curl -s {URL}/v1/completions -d …", output=('"object":"text_completion"', )),
        Seen(f"curl -s {URL}/tokenize -d …", output=(r'"tokens":\[\d', )),
        Seen(f"curl -s {URL}/v1/cache/stats", output=('"prefix"', )),
        Seen(f"curl -s {URL}/v1/cache/entries", output=('"kv_bytes":[1-9]', )),
        Seen(f"curl -s {URL}/metrics", output=("vllm:num_requests_running", )),
        Seen(f"curl -s -X POST {URL}/v1/cache/reset"),
    ],
    "docs/terminal.md": [
        Seen("mkdir -p ~/.local/share/bash-completion/completions ~/.config/fish/completions ~/.local/share/man/man1 ~/.zfunc"),
        Seen("vlcache completions bash > ~/.local/share/bash-completion/completions/vlcache"),
        Seen("vlcache completions zsh > ~/.zfunc/_vlcache"),
        Seen("vlcache completions fish > ~/.config/fish/completions/vlcache.fish"),
        Seen("vlcache completions man > ~/.local/share/man/man1/vlcache.1"),
    ],
}
