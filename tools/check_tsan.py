#!/usr/bin/env python3
"""Fails when code that threads share differs by more than 300 lines from the commit on which `make tsan` has passed."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ("src/server", "src/api", "src/engine/scheduler", "src/engine/reuse", ":(glob)src/base/**/threads*")
MOST_LINES = 300


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def main():
    file = ROOT / "tools/tsan-passed"
    commit = file.read_text().strip() if file.exists() else ""
    if not commit:
        print("tools/tsan-passed is missing: run `make tsan` and commit the file")
        return 1
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        print(f"skipped: the commit of tools/tsan-passed ({commit[:8]}) is not in this clone")
        return 0
    numbers = git("diff", "--numstat", "-M", commit, "--", *SHARED).stdout.splitlines()
    n = sum(int(field) for line in numbers for field in line.split("\t")[:2] if field.isdigit())
    if n > MOST_LINES:
        print(f"{n} lines of code that threads share changed since `make tsan` passed ({MOST_LINES} at most): run it")
        return 1
    print(f"ok: {n} lines of code that threads share since `make tsan` passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
