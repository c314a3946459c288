"""Signals while the program computes: a foreign handler without SA_ONSTACK, as profilers and embedders have one, gets one every 5 ms in every thread.

`make test` runs `eval` and `logits`, twice each; VLCACHE_TEST_SIGNALS=8 (`make soak`) every command of a table so often, `chat` and `serve` under load, with a
terminal that is resized and Ctrl-C at random times."""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest
from test_terminal import CTRL_C, Terminal

sys.path.insert(0, str(ROOT / "studies/load"))
import soak  # noqa: E402

ROUNDS = int(os.environ.get("VLCACHE_TEST_SIGNALS", 0))
QUESTIONS = ROOT / "tests/fixtures/tinydoc/questions.jsonl"
WORDS = "The total of the page is written below. " * 25  # 200 words
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@unittest.skipIf(COMPILER is None, "no C compiler, for a library that is preloaded")
@unittest.skipIf("ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ, "a sanitizer's library has to be loaded first")
class Signalled(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tools = pathlib.Path(tempfile.mkdtemp(prefix="vlcache-signals-"))
        cls.addClassCleanup(shutil.rmtree, cls.tools, ignore_errors=True)
        cls.library = cls.tools / "signals.so"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", cls.library, pathlib.Path(__file__).with_name("signals_preload.c"), "-lpthread"], check=True)
        lines = [json.loads(line) for line in QUESTIONS.read_text().splitlines()[:3]]
        cls.data = cls.tools / "questions.jsonl"
        cls.data.write_text("".join(json.dumps({**row, "images": [str(QUESTIONS.parent / path) for path in row["images"]]}) + "\n" for row in lines))

    def eval(self, *more, policy="knorm"):
        out = tempfile.mkdtemp(dir=self.folder)
        return ("eval", "-m", MODEL, "--data", self.data, "--kv", policy, "--kv-budget", "0.4", "-n", "3", "-o", pathlib.Path(out) / "eval", *more)

    def logits(self, *more):
        return ("logits", "-m", MODEL, "--raw", WORDS, "-o", self.folder / "logits", *more)

    def under_signals(self, args, **env):
        return subprocess.run([VLCACHE, *map(str, args)], capture_output=True, text=True, timeout=300, env={**os.environ, "LD_PRELOAD": str(self.library), **env})


class Computing(Signalled):
    def test_eval_and_logits(self):
        self.survive([self.eval, self.logits], rounds=2)

    def survive(self, commands, rounds):
        died = {}
        for command in commands:
            for _ in range(rounds):
                args = command()
                p = self.under_signals(args)
                if p.returncode != 0:
                    died.setdefault(" ".join(map(str, args)), []).append((p.returncode, p.stderr[-300:]))
        self.assertEqual(died, {})


if ROUNDS:
    class Everything(Computing):
        """The table of the study."""

        def test_eval_and_logits(self):
            self.survive([self.eval, lambda: self.eval("-t", "1"), lambda: self.eval("--max-isa", "scalar"), lambda: self.eval("--dtype", "f32"),
                          lambda: self.eval(policy="vl-cache"), lambda: self.eval(policy="pointer@draft+global"),
                          self.logits, lambda: self.logits("-t", "1"), lambda: self.logits("--backend", "ref")], ROUNDS)

        def test_other_commands(self):
            self.survive([lambda: ("run", "-m", MODEL, "-i", PAGE, "What is the TOTAL?"), lambda: ("run", "-m", MODEL, "Hello"), lambda: ("bench", "-m", MODEL, "-p", "64", "-n", "8", "-r", "1"),
                          lambda: ("info", "-m", MODEL), lambda: ("tokenize", "-m", MODEL, WORDS), lambda: ("policies",)], ROUNDS)

        def test_no_code_has_a_stack_of_its_own(self):
            """Counts, instead of what breaks: images of each decoder, constraints, weights of each form."""
            schema = self.write("schema.json", json.dumps({"type": "string", "pattern": "^[a-z]{3,9}( [A-Z]+)*$"}))
            ask = ("run", "-m", MODEL, "--max-tokens", "8")
            commands = [self.eval(), self.logits(), self.logits("--weights", "int4"), self.logits("--weights", "int8", "--dtype", "f32"), (*ask, "--json-schema", schema, "Hello"),
                        *((*ask, "-i", path, "What?") for path in sorted((ROOT / "tests/fixtures").rglob("*")) if path.suffix in (".jpg", ".webp", ".png") and path.stat().st_size > 20_000)]
            n_signals = 0
            for n, args in enumerate(commands):
                with self.subTest(args=args):
                    self.assertEqual(self.under_signals(args, SIGNALS_WATCH=str(self.folder / f"watch-{n}")).returncode, 0)
                    for file in self.folder.glob(f"watch-{n}.*"):  # one of each process
                        first, *codes = file.read_text().splitlines()
                        self.assertEqual((first.split()[0], codes), ("0", []))
                        n_signals += int(first.split()[2])
            self.assertGreater(n_signals, 200)

        def test_interrupted_at_random_times(self):
            r = random.Random(5)
            for n in range(4 * ROUNDS):
                args = [VLCACHE, *map(str, r.choice((self.eval, self.logits))())]
                p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "LD_PRELOAD": str(self.library)})
                time.sleep(r.uniform(0, 1))
                p.send_signal(signal.SIGINT)
                said = p.communicate(timeout=120)[1]
                self.assertIn(p.returncode, (0, 130, -signal.SIGINT), said)  # -SIGINT: before the command watches for it

        def test_chat(self):
            r = random.Random(6)
            for n in range(ROUNDS):
                env = {"HOME": str(self.folder), "LC_ALL": "C.UTF-8", "LD_PRELOAD": str(self.library)}
                t = Terminal([VLCACHE, "chat", "-m", str(MODEL), "--temperature", "0", "--max-tokens", "60", "--ignore-eos", "-i", str(PAGE)], env)
                self.addCleanup(t.close)
                t.prompt()
                over = threading.Event()

                def resize():
                    while not over.wait(r.uniform(0.001, 0.03)):
                        t.resize(r.randrange(40, 120))

                resizing = threading.Thread(target=resize)
                resizing.start()
                for _ in range(6):
                    t.send(WORDS + "\r")
                    if r.random() < 0.6:
                        time.sleep(r.uniform(0, 0.5))
                        t.send(CTRL_C)
                    t.prompt()
                over.set()
                resizing.join()
                t.send("\x15/quit\r")
                self.assertEqual(t.exit_code(), 0, t.seen[-500:])

        def test_serve_under_load(self):
            pool = soak.make_pool(16, seed=7)
            os.environ["LD_PRELOAD"] = str(self.library)
            try:
                for n in range(ROUNDS):
                    server = soak.Server(VLCACHE)
                    with concurrent.futures.ThreadPoolExecutor(8) as threads:
                        first = list(threads.map(server.ask, pool))
                        again = list(threads.map(lambda body: server.ask(body, stream=True), pool))
                    self.assertEqual(first, again)
                    self.assertEqual(server.end(), 0)
            finally:
                del os.environ["LD_PRELOAD"]


if __name__ == "__main__":
    unittest.main()
