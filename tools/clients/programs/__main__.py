"""Runs one program, in an environment that has it: `python -m programs NAME` (run.py sets the variables that common.py reads).

Prints a line of JSON for each case that the program has: {"program", "case", "ok", "detail"}. The question about the page must have the right answer; a forced
call must have valid arguments; a structured answer must be what its class allows."""
import importlib
import json
import sys

from . import CASES, PROGRAMS
from .common import SEES


def main(name):
    module, _, cls = PROGRAMS[name][1].partition(".")
    program = getattr(importlib.import_module("." + module, __package__), cls)()
    for case in getattr(program, "CASES", CASES):
        if not hasattr(program, case) or case in ("image", "page") and not SEES: continue
        try:
            ok, detail = True, getattr(program, case)()
        except Exception as error:
            ok, detail = False, f"{type(error).__name__}: {error}"[:400]
        print(json.dumps({"program": name, "case": case, "ok": ok, "detail": detail}), flush=True)


if __name__ == "__main__": main(sys.argv[1])
