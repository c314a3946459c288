#!/usr/bin/env python3
"""Runs the unittest classes of folders in several processes, each class in one of them.

  run_python_tests.py [--jobs 2] [--junit FILE] [--only TEXT...] [--list] FOLDER...

--only: tests whose id (module.Class.test) contains one of the texts. A worker that dies or takes longer than --timeout
seconds for a class fails the rest of that class. Exit status 1 if a test failed, or none ran.
"""
import argparse
import contextlib
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest
import xml.etree.ElementTree as ET

# Classes that run long begin first; the others in the order of their files.
LONG_FIRST = (".Load", ".Reuse", ".Store", ".ServeFlags", ".Commands", ".Eval", ".Lookahead")


def tests_of(suite):
    for item in suite:
        yield from tests_of(item) if isinstance(item, unittest.TestSuite) else [item]


def classes_of(folder, only):
    """[(module.Class, [ids])] of a folder."""
    sys.path.insert(0, str(folder))
    found = {}
    for file in sorted(folder.glob("test_*.py")):
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromName(file.stem)):
            if not only or any(text in test.id() for text in only):
                found.setdefault(test.id().rpartition(".")[0], []).append(test.id())
    return list(found.items())


def cpu_seconds():
    """Of this process and all that descend from it: user and system time, that of ended and awaited children included."""
    children, seconds = {}, {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()  # from the state on
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
            seconds[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, open_processes = 0.0, [os.getpid()]
    while open_processes:
        process = open_processes.pop()
        total += seconds.get(process, 0.0)
        open_processes += children.get(process, [])
    return total


class Reporter(unittest.TestResult):
    """Writes a line for each test to a pipe: kind, seconds, CPU seconds, id, text; \\0 between them."""

    def __init__(self, to):
        super().__init__()
        self.to, self.begin = to, time.monotonic()  # begin: also of a non-test, a class that cannot be set up
        self.cpu_begin = cpu_seconds()

    def startTest(self, test):
        super().startTest(test)
        self.begin, self.cpu_begin = time.monotonic(), cpu_seconds()

    def say(self, kind, test, text=""):
        seconds, cpu = time.monotonic() - self.begin, cpu_seconds() - self.cpu_begin
        fields = [kind, f"{seconds:.3f}", f"{max(cpu, 0):.2f}", test.id(), text.replace("\n", "\x01")]
        print("\0".join(fields), file=self.to, flush=True)

    def addSuccess(self, test):
        self.say("passed", test)

    def addSkip(self, test, reason):
        self.say("skipped", test, reason)

    def addFailure(self, test, err):
        self.say("failed", test, "".join(traceback.format_exception(*err)))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.say("failed", subtest, "".join(traceback.format_exception(*err)))

    def addExpectedFailure(self, test, err):
        self.say("passed", test)

    def addUnexpectedSuccess(self, test):
        self.say("failed", test, "expected to fail")


def work(folder, ids):
    """In a worker: runs the tests of a class, on standard output their results."""
    sys.path.insert(0, folder)
    to, sys.stdout = sys.stdout, sys.stderr
    module = unittest.defaultTestLoader.loadTestsFromName(ids[0].partition(".")[0])
    unittest.TestSuite(test for test in tests_of(module) if test.id() in ids).run(Reporter(to))


def run_class(folder, name, ids, timeout):
    """[(kind, seconds, CPU seconds, id, text)] of a class."""
    command = [sys.executable, __file__, "--work", str(folder), *ids]
    worker = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors="replace", start_new_session=True)
    try:
        output, errors = worker.communicate(timeout=timeout)
        problem = f"the worker ended with status {worker.returncode}" if worker.returncode else ""
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)  # with the servers that it has started
        output, errors = worker.communicate()
        problem = f"not done after {timeout} s"
    results = []
    for line in output.splitlines():
        fields = line.split("\0")
        if len(fields) == 5:
            results.append((fields[0], float(fields[1]), float(fields[2]), fields[3], fields[4].replace("\x01", "\n")))
    reported = [test for _, _, _, test, _ in results]  # a failed subtest as "id [what]", a class without a start as "setUpClass (..)"
    missing = {i for i in ids if not any(test.startswith(i) for test in reported)}
    if missing and not problem and not any(test.startswith("setUpClass") for test in reported):
        problem = f"{len(missing)} tests did not run: {', '.join(sorted(missing))}"
    if problem:
        results.append(("failed", 0.0, 0.0, name, f"{problem}\n{errors[-4000:]}"))
    return results


def write_junit(file, results):
    suite = ET.Element("testsuite", name="python", tests=str(len(results)))
    for kind, seconds, cpu, name, text in results:
        owner, _, test = name.rpartition(".")
        case = ET.SubElement(suite, "testcase", classname=owner, name=test, time=f"{seconds:.3f}")
        ET.SubElement(ET.SubElement(case, "properties"), "property", name="cpu_seconds", value=f"{cpu:.2f}")
        if kind != "passed":
            element = ET.SubElement(case, "skipped" if kind == "skipped" else "failure")
            element.text = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
    ET.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--junit", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    begin = time.monotonic()
    classes = [(folder.resolve(), *c) for folder in args.folders for c in classes_of(folder.resolve(), args.only)]
    if args.list:
        print("\n".join(i for _, _, ids in classes for i in ids))
        return 0
    classes.sort(key=lambda c: next((i for i, text in enumerate(LONG_FIRST) if c[1].endswith(text)), len(LONG_FIRST)))
    waiting, results, lock = queue.Queue(), [], threading.Lock()
    for c in classes:
        waiting.put(c)

    def serve():
        while True:
            try:
                folder, name, ids = waiting.get_nowait()
            except queue.Empty:
                return
            some = run_class(folder, name, ids, args.timeout)
            with lock:
                results.extend(some)
                for kind, _, _, test, text in some:
                    if kind == "failed":
                        print(f"FAILED: {test}\n{text}", flush=True)

    threads = [threading.Thread(target=serve) for _ in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if args.junit:
        write_junit(args.junit, results)
    n = {kind: sum(r[0] == kind for r in results) for kind in ("passed", "failed", "skipped")}
    print("the slowest tests:")
    for _, seconds, _, name, _ in sorted(results, key=lambda r: -r[1])[:10]:
        print(f"{seconds:8.1f} s  {name}")
    print(f"Ran {len(results)} tests in {time.monotonic() - begin:.0f} s: "
          f"{n['passed']} passed, {n['failed']} failed, {n['skipped']} skipped")
    return 1 if n["failed"] or not results else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
