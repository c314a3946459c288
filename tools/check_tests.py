#!/usr/bin/env python3
"""Fails when a test or fuzz file is part of no build.  check_tests.py BUILD... (each with its list test_files.txt)"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
built = {line for build in sys.argv[1:] for line in (pathlib.Path(build) / "test_files.txt").read_text().split()}
files = [p for folder in ("src", "tests") for kind in ("test", "fuzz") for p in (ROOT / folder).glob(f"**/*_{kind}.cc")]
lost = [f"{p.relative_to(ROOT)}: in no build" for p in files if str(p) not in built]
print("\n".join(lost) if lost else f"ok: {len(files)} test and fuzz files, each in a build")
sys.exit(bool(lost))
