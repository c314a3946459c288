"""Running vlcache from tests: the program, the model that ships, and a folder to write to."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
VLCACHE = os.environ.get("VLCACHE", str(ROOT / "build/release/vlcache"))
MODEL = ROOT / "models/tinydoc"
PAGE = MODEL / "demo/invoice.png"
SHADOWED = "TSAN_OPTIONS" in os.environ  # ThreadSanitizer keeps memory of its own: bounds of ours do not hold


class RedisServer:
    """A Redis server of its own on a free port, its files in `folder`; start() again keeps the port."""

    def __init__(self, folder, *more):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.folder = folder
        self.start(*more)

    def start(self, *more):
        self.process = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), *more],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1000):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("redis-server does not listen")

    def end(self):
        self.process.kill()
        self.process.wait()


def run(*args, stdin=None, env=None, timeout=120):
    return subprocess.run([VLCACHE, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})})


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="vlcache-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def ok(self, *args, **kwargs):
        p = run(*args, **kwargs)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def json(self, *args, **kwargs):
        return json.loads(self.ok(*args, **kwargs))

    def fails(self, *args, says, **kwargs):
        """Exit code 2 and one line on stderr that contains every string of `says`."""
        p = run(*args, **kwargs)
        self.assertEqual(p.returncode, 2, f"stdout {p.stdout!r} stderr {p.stderr!r}")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, p.stderr)
        self.assertEqual(len(p.stderr.strip().splitlines()), 1, p.stderr)
        self.assertEqual(p.stdout, "")
        return p.stderr

    def copy_model(self):
        """A writable copy of the model, to be damaged."""
        target = self.folder / "model"
        shutil.copytree(MODEL, target, ignore=shutil.ignore_patterns("demo"))
        return target

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path
