"""Files and folders to write to: made with their parents, or refused before anything is computed, by name and reason."""
import json
import os
import stat
import subprocess

from program import MODEL, PAGE, VLCACHE, ProgramTest
from server import ServerProcess

QUESTION = "What is the TOTAL?"
TRACE = '{"timestamp": 0, "input_length": 9, "hash_ids": [1, 2, 3]}\n'


class Paths(ProgramTest):
    def setUp(self):
        super().setUp()
        self.new = self.folder / "not" / "yet"  # no part of it exists
        self.data = self.write("q.jsonl", json.dumps({"image": str(PAGE), "question": QUESTION, "answer": "TOTAL: 435.75"}) + "\n")
        self.trace = self.write("trace.jsonl", TRACE)

    def to_write(self, at):
        """{name: (command that writes to `at`, the files that it leaves)}"""
        ask = ("-m", MODEL, "-i", PAGE, QUESTION, "--max-tokens", "1")
        return {
            "cache": (("run", *ask, "--cache-disk", at / "cache"), ["cache"]),
            "inspect": (("inspect", *ask, "-o", at / "i/a.html", "--json", at / "j/b.json"), ["i/a.html", "j/b.json"]),
            "eval": (("eval", "-m", MODEL, "--data", self.data, "--kv", "streaming", "--kv-budget", "0.5", "--max-tokens", "1", "-o", at / "eval/out"), ["eval/out/report.html"]),
            "logits": (("logits", "-m", MODEL, "Hi", "-o", at / "l/x.safetensors"), ["l/x.safetensors"]),
            "simulate": (("simulate", self.trace, "--block", "4", "--capacity", "4", "--each", at / "s/each.jsonl"), ["s/each.jsonl"]),
            "heads": (("tune", "heads", "-m", MODEL, "--period", "16", "-o", at / "h/heads.json"), ["h/heads.json"]),
            "packed": (("run", *ask, "--weights", "int8", "--packed-cache", at / "p/packed"), ["p/packed"]),
        }

    def test_missing_folders_are_made(self):
        for name, (command, files) in self.to_write(self.new).items():
            self.ok(*command)
            for file in files:
                self.assertTrue((self.new / file).exists(), name)
        for private in ("cache", "p"):
            self.assertEqual(stat.S_IMODE((self.new / private).stat().st_mode), 0o700)
        p = subprocess.run([VLCACHE, "chat", "-m", str(MODEL), "--session", "s", "--max-tokens", "1", "--cache-disk", str(self.new / "of/chat")],
                           input="/system x\nHi\n/save " + str(self.new / "saved/c.json") + "\n", capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertTrue((self.new / "saved/c.json").exists(), p.stderr)
        self.assertTrue(list((self.new / "of/chat").rglob("session.json")))

    def test_the_access_log_comes_back_with_its_folder(self):
        log = self.new / "logs/access.log"
        server = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--access-log", log])
        self.addCleanup(server.kill)
        log.unlink()
        log.parent.rmdir()
        server.process.send_signal(1)  # SIGHUP, as after a rotation
        while server.answer("GET", "/version").status == 200 and not log.exists():
            pass
        self.assertEqual(stat.S_IMODE(log.parent.stat().st_mode), 0o700)

    def test_what_cannot_be_made_is_refused_before_anything_is_computed(self):
        self.model = self.copy_model()
        weights = self.model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])  # a model that cannot be loaded: its error would come later
        file = self.write("file", "")
        for name, (command, _) in self.to_write(file / "sub").items():
            if name == "packed": continue  # goes on without
            command = [self.model if part == MODEL else part for part in command]
            error = self.fails(*command, says=[str(file / "sub"), "Not a directory", "name a"])
            self.assertNotIn("disk full", error)
        self.fails("serve", "-m", self.model, "--port", "0", "--access-log", file / "a.log", says=["--access-log", str(file / "a.log"), "Not a directory", "name another file"])
        self.fails("chat", "-m", self.model, "--session", "s", "--cache-disk", file / "x", stdin="", says=[str(file / "x"), "Not a directory"])
        self.fails("run", "-m", self.model, "--cache-disk", file, "Hi", says=[str(file), "the cache folder cannot be made: Not a directory"])
        self.fails("tune", "reuse", "-m", self.model, "--data", self.data, "-o", file / "plan.json", says=[str(file / "plan.json"), "Not a directory"])

    def test_without_rights(self):
        """Also the files that `tune` writes beside a model without -o."""
        shut = self.folder / "shut"
        shut.mkdir()
        os.chmod(self.folder, 0o755)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (shut / name).symlink_to(MODEL / name)
        shut.chmod(0o555)
        self.addCleanup(shut.chmod, 0o755)
        demote = {"user": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        for says, *command in ((shut / "heads.json", "tune", "heads", "-m", shut), (shut / "reuse_plan.json", "tune", "reuse", "-m", shut, "--data", self.data),
                               (shut / "r.html", "inspect", "-m", shut, QUESTION, "-o", shut / "r.html"), (shut / "c/d", "run", "-m", shut, "--cache-disk", shut / "c/d", "Hi")):
            p = subprocess.run([VLCACHE, *map(str, command)], capture_output=True, text=True, env={**os.environ, "HOME": "/nonexistent"}, **demote)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertIn(f"{says}: ", p.stderr)
            self.assertIn("Permission denied; name a", p.stderr)
