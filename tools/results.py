#!/usr/bin/env python3
"""Adds up what tests have said of themselves, names the ten slowest, and closes with "N passed, M failed, K skipped".

  results.py BUILD... [--python FILE.xml...] [--lines FILE...] [--names FILE] [--budgets FOLDER]

BUILD: a build folder in which `ctest --output-junit junit.xml` has run; each program has written results/TEST.xml. A
program that died, timed out or ran no test counts as failed. FILE.xml: JUnit, of the Python tests. --lines: a line "ok:
..." or "FAILED: ..." for each check. --names: writes every test's name and the builds in which it ran. --budgets: holds each
test's CPU seconds against tools/budgets.json; the tests of tests/slow.txt (20 at most) may take more.
"""
import argparse
import collections
import pathlib
import sys
import xml.etree.ElementTree as ET

import budgets

SLOW_TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests/slow.txt"
MOST_SLOW_TESTS = 20


class Results:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.seconds = []  # (seconds, name)
        self.cpu_seconds = []  # (CPU seconds, name, where)
        self.problems = []
        self.runs = collections.defaultdict(list)  # name -> builds

    def add(self, name, where, seconds, failed, skipped, text=""):
        if failed:
            self.failed += 1
            self.problems.append(f"FAILED: {where}: {name}\n{text}")
        elif skipped:
            self.skipped += 1
        else:
            self.passed += 1
        self.seconds.append((seconds, f"{where}: {name}"))
        self.runs[name].append(where)

    def add_cases(self, file, where):
        """Cases of a JUnit file; (how many ran, how many failed)."""
        n = n_failed = 0
        for case in ET.parse(file).iter("testcase"):
            if case.get("status") == "notrun":  # filtered out
                continue
            problems = [e for e in case if e.tag in ("failure", "error")]
            skipped = case.find("skipped") is not None or case.get("result") == "skipped"
            text = "\n".join((e.get("message") or "") + (e.text or "") for e in problems)
            name = f"{case.get('classname')}.{case.get('name')}"
            self.add(name, where, float(case.get("time") or 0), bool(problems), skipped, text)
            for e in case.iter("property"):
                if e.get("name") == "cpu_seconds":
                    self.cpu_seconds.append((float(e.get("value")), name, where))
            n += 1
            n_failed += bool(problems)
        return n, n_failed

    def add_build(self, folder):
        junit = folder / "junit.xml"
        if not junit.exists():
            return self.add(f"{folder}: no test ran", folder.name, 0, True, False)
        for program in ET.parse(junit).iter("testcase"):
            name, file = program.get("name"), folder / "results" / f"{program.get('name')}.xml"
            ok = program.get("status") == "run"
            n = n_failed = 0
            if file.exists():
                n, n_failed = self.add_cases(file, folder.name)
            elif ok:  # a check without cases of its own
                self.add(name, folder.name, float(program.get("time") or 0), False, False)
                continue
            if (not ok and n_failed == 0) or (ok and n == 0):
                output = (program.findtext("system-out") or "")[-4000:]
                self.add(name, folder.name, float(program.get("time") or 0), True, False, output or "it died, or ran no test")


    def hold_against_budgets(self, folder):
        """Loud lines and failures for tests above their limits that tests/slow.txt does not name."""
        slow_tests = [line.split()[0] for line in SLOW_TESTS.read_text().splitlines() if line and not line.startswith("#")]
        if len(slow_tests) > MOST_SLOW_TESTS:
            self.add(f"tests/slow.txt has {len(slow_tests)} names, {MOST_SLOW_TESTS} at most", "budgets", 0, True, False)
        slow = budgets.slowness(folder)
        limits = budgets.BUDGETS["tests_cpu_s"]
        for seconds, name, where in sorted(self.cpu_seconds, reverse=True):
            limit = limits.get(where, limits["python"])
            line = budgets.over(f"{where}: {name}, {seconds:.1f} CPU s", seconds / slow / limit)
            if line is None or name in slow_tests:
                continue
            print(f"{line}; shorten it, or name it in tests/slow.txt")
            if line.startswith("FAILED"):
                self.add(f"{name} takes too long", where, 0, True, False, line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="*", type=pathlib.Path)
    parser.add_argument("--python", nargs="*", default=[], type=pathlib.Path)
    parser.add_argument("--lines", nargs="*", default=[], type=pathlib.Path)
    parser.add_argument("--names", type=pathlib.Path)
    parser.add_argument("--budgets", type=pathlib.Path)
    args = parser.parse_args()
    results = Results()
    for folder in args.builds:
        results.add_build(folder)
    for file in args.python:
        if not file.exists() or results.add_cases(file, file.stem)[0] == 0:
            results.add(str(file), "python", 0, True, False, "no test ran")
    for file in args.lines:
        for line in file.read_text().splitlines() if file.exists() else []:
            if line.startswith(("ok: ", "FAILED: ")):
                results.add(line.split(": ", 1)[1], file.stem, 0, line.startswith("FAILED"), False)
    if args.budgets:
        results.hold_against_budgets(args.budgets)
    for problem in results.problems:
        print(problem)
    print("the slowest tests:")
    for seconds, name in sorted(results.seconds, reverse=True)[:10]:
        print(f"{seconds:8.1f} s  {name}")
    if args.names:
        args.names.write_text("".join(f"{name}\t{' '.join(sorted(set(where)))}\n" for name, where in sorted(results.runs.items())))
    print(f"{results.passed} passed, {results.failed} failed, {results.skipped} skipped")
    sys.exit(results.failed > 0)


if __name__ == "__main__":
    main()
