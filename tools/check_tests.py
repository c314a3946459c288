#!/usr/bin/env python3
"""Fails when a test or fuzz file belongs to no CMake target.  check_tests.py BUILD_DIR (with its compile_commands.json)

Fuzz targets are built by the `asan` preset only: for them a folder rule must exist, which vlcache_folder() is.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
compiled = {pathlib.Path(c["file"]).resolve() for c in json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())}
tests = [p for p in [*ROOT.glob("src/**/*_test.cc"), *ROOT.glob("tests/**/*_test.cc")]]
lost = [f"{p.relative_to(ROOT)}: a test in no target" for p in tests if p.resolve() not in compiled]
for p in ROOT.glob("**/*_fuzz.cc"):
    folder = p.parent
    while folder != ROOT and not (folder / "CMakeLists.txt").exists():
        folder = folder.parent
    if folder == ROOT or "vlcache_folder(" not in (folder / "CMakeLists.txt").read_text():
        lost.append(f"{p.relative_to(ROOT)}: a fuzz target in no target")
print("\n".join(lost) if lost else f"ok: {len(tests)} test files, each in a target")
sys.exit(bool(lost))
