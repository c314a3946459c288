#!/usr/bin/env python3
"""`make clients`: programs of today against `vlcache serve`, each as its users run it (programs/).

    tools/clients/run.py [NAME ...] [--text-model FOLDER] [--record]

Installs the versions of requirements/*.txt into build/clients-* (once), runs the programs on tinydoc and, where FOLDER (build/smollm2, by smollm2.py) exists, on
a model of text, programs for models that answer in special tokens on checkpoints that do so (tests/answering_model.py), and ends with 1 if one fails. --record
writes what they sent, except to the model of text, to tests/clients/recorded.jsonl, which CI replays without them, and the results to results.json and, as a
table, to docs/server/clients.md; other programs' lines there stay as they are."""
import argparse
import base64
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(pathlib.Path(__file__).parent)]
from program import MODEL, PAGE, VLCACHE  # noqa: E402
import answering_model  # noqa: E402
from programs import CASES, PROGRAMS  # noqa: E402
from recorder import Recorder  # noqa: E402
from server import ServerProcess  # noqa: E402

HERE, RECORDED = pathlib.Path(__file__).parent, ROOT / "tests/clients/recorded.jsonl"
MOST_RECORDED = 4  # requests of a case: a harness sends many of one kind


def install(environment):
    """The Python that has the packages of requirements/`environment`.txt."""
    folder, wanted = ROOT / f"build/clients-{environment}", HERE / f"requirements/{environment}.txt"
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"installing {wanted.name} into {folder.relative_to(ROOT)}", file=sys.stderr)
        if not (folder / "bin/python").exists(): subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", "-r", wanted], check=True)
        stamp.write_text(wanted.read_text())
    return folder / "bin/python"


def run(names, model, page, recorded):
    """Runs programs on the model of a folder; prints and returns {(program, case): result}; adds what they sent to `recorded`, a list, if there is one."""
    results = {}
    server = ServerProcess([VLCACHE, "serve", "-m", model, "--port", "0", "--dtype", "f32"]).ready()
    recorder = Recorder(server.port)
    data = base64.b64encode(page.read_bytes()).decode() if page else "@"
    about = {"CLIENTS_URL": f"http://127.0.0.1:{recorder.port}", "CLIENTS_MODEL": model.name, "CLIENTS_FOLDER": str(model), "CLIENTS_PAGE": str(page or ""),
             "CLIENTS_VLCACHE": VLCACHE, "CLIENTS_TESTS": str(ROOT / "tests")}
    try:
        for name in names:
            with open(ROOT / f"build/clients-{name}.log", "w") as log:
                program = subprocess.Popen([install(PROGRAMS[name][0]), "-m", "programs", name], cwd=HERE, env={**os.environ, **about}, stdout=subprocess.PIPE, stderr=log, text=True)
                for line in program.stdout:
                    if not line.startswith('{"program"'): continue
                    result = json.loads(line)
                    results[name, result["case"]] = result
                    sent = recorder.take()
                    if recorded is not None: recorded.extend(record(name, path, body, data) for path, body in sent[:MOST_RECORDED])
                    print(f"{model.name:10} {name:20} {result['case']:15} {'ok' if result['ok'] else 'FAILED  ' + result['detail']}", flush=True)
            if program.wait(): results[name, "run"] = {"ok": False, "detail": f"exit status {program.returncode}"}
    finally:
        recorder.close()
        server.kill()
    return results


def record(name, path, body, page):
    """A line of the file; pages, in whatever encoding a program made of them, are written as @PAGE@."""
    body = re.sub(r"[A-Za-z0-9+/=]{4000,}", "@PAGE@", body.replace(page, "@PAGE@"))
    return {"program": name, "path": path, "body": json.loads(body)}


def table(results):
    """Markdown of {model: {program: {case: whether it works}}}: the models on which a case works."""
    cases = list(dict.fromkeys([*CASES, *(case for programs in results.values() for found in programs.values() for case in found)]))
    def cell(name, case):
        found = {model: programs.get(name, {}).get(case) for model, programs in results.items()}
        tried = [model for model, works in found.items() if works is not None]
        works = [model for model in tried if found[model]]
        if not tried: return ""
        return ("both" if len(works) == 2 else works[0] if works else "**none**") + "".join(f", **not {model}**" for model in tried if works and model not in works)
    names = [name for name in PROGRAMS if any(name in programs for programs in results.values())]
    common = [f"| {name} | " + " | ".join(cell(name, case) for case in CASES) + " | " + "; ".join(f"{case.replace('_', ' ')}: {cell(name, case)}" for case in cases if case not in CASES and cell(name, case)) + " |" for name in names]
    return "\n".join(["| program | " + " | ".join(case.replace("_", ", ") for case in CASES) + " | others |", "|---" * (len(CASES) + 2) + "|", *common])


def write_down(results, recorded):
    """Adds what programs did to the files that keep it."""
    kept = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    ran = {r["program"] for r in recorded}
    lines = [r for r in kept if r["program"] not in ran] + recorded
    RECORDED.write_text("".join(json.dumps(r) + "\n" for r in sorted(lines, key=lambda r: list(PROGRAMS).index(r["program"]))))
    file = HERE / "results.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for model, found in results.items():
        for name in {program for program, _ in found}: known.setdefault(model, {})[name] = {case: result["ok"] for (program, case), result in found.items() if program == name}
    file.write_text(json.dumps(known, indent=1) + "\n")
    docs = ROOT / "docs/server/clients.md"
    docs.write_text(re.sub(r"(<!-- programs -->\n).*?(<!-- end -->)", lambda m: m[1] + table(known) + "\n" + m[2], docs.read_text(), flags=re.S))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--text-model", type=pathlib.Path, default=ROOT / "build/smollm2")
    parser.add_argument("--text-only", action="store_true", help="only on the model of text")
    parser.add_argument("--record", action="store_true")
    a = parser.parse_args()
    recorded, results = [], {}
    needs = {name: PROGRAMS[name][2] if len(PROGRAMS[name]) > 2 else "" for name in a.names}
    models = [] if a.text_only else [(MODEL, PAGE, recorded, "")]
    if (a.text_model / "config.json").exists(): models.append((a.text_model, None, None, ""))
    for kind in [] if a.text_only else answering_model.KINDS: models.append((ROOT / "build" / kind, PAGE, recorded, kind))
    for model, page, into, kind in models:
        names = [name for name in a.names if needs[name] == kind]
        if kind and names: answering_model.make(kind, model)
        if names: results[model.name] = run(names, model, page, into)
    print("\n" + table({model: {name: {case: r["ok"] for (program, case), r in found.items() if program == name} for name in a.names} for model, found in results.items()}))
    if a.record: write_down(results, recorded)
    return 0 if all(found and all(r["ok"] for r in found.values()) for found in results.values()) else 1


if __name__ == "__main__": sys.exit(main())
