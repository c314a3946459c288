"""The commands of README and of the documents' first screens, as documented.py lists them, run as they stand there."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from documented import SEEN, commands, documents
from program import MODEL, ROOT, VLCACHE, ProgramTest, run
from server import ServerProcess

PORT = "8080"  # of the documents' examples


class Lists(unittest.TestCase):
    def test_every_command_is_listed_and_every_listed_one_documented(self):
        found = documents()
        self.assertEqual(set(found), set(SEEN), "documents with commands, and those listed in tests/e2e/documented.py")
        for name, of in found.items():
            listed = SEEN[name]
            for i in range(max(len(of), len(listed))):
                self.assertLess(i, len(of), f"{name} has no command '{listed[i].command if i < len(listed) else ''}'")
                self.assertLess(i, len(listed), f"tests/e2e/documented.py does not list the command '{of[i].command}' of {name}")
                self.assertTrue(listed[i].is_for(of[i].command), f"{name} has '{of[i].command}' where tests/e2e/documented.py lists '{listed[i].command}'")
                for text in listed[i].comment:
                    self.assertIn(text, of[i].comment, f"the comment of '{of[i].command}' in {name}")
                self.assertEqual(bool(listed[i].elsewhere), listed[i].elsewhere.strip() != "")

    def test_examples_of_help_are_documented(self):
        known = {found.command.removeprefix("build/release/") for of in documents().values() for found in of}
        for name in ("run", "inspect", "eval", "tune reuse", "serve"):
            example = re.search(r"Example: (vlcache .*?)(?:\n\n|\Z)", run(*name.split(), "--help").stdout, re.S)
            self.assertIn(" ".join(example[1].split()), known, name)

    def test_targets_of_make_exist(self):
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
        named = set(re.findall(r"`make ([a-z-]+)`", (ROOT / "README.md").read_text()))
        self.assertGreaterEqual(len(named), 8)
        self.assertLessEqual(named, targets)

    def test_forms_of_commands(self):
        text = "\n".join(("```", "a 'x # y' \"# z\"  # beside", "", "# above", "b \\", "  --flag c#d", "```", "```cpp", "int x;", "```", "```sh", "$ one", "output", "$ two # says", "```", "", "```", "late", "```"))
        found = [(c.command, c.comment) for c in commands("x.md", text, 16)]
        self.assertEqual(found, [("a 'x # y' \"# z\"", "beside"), ("b --flag c#d", "above"), ("one", ""), ("two", "says")])


class Documented(ProgramTest):
    """A copy of the project's folder with the program under test, and a new home."""

    def setUp(self):
        super().setUp()
        self.home, self.project = self.folder / "home", self.folder / "project"
        (self.project / "models").mkdir(parents=True)
        self.home.mkdir()
        for path in ROOT.iterdir():
            if path.name not in ("build", "models", "out", ".git"): (self.project / path.name).symlink_to(path)
        shutil.copytree(MODEL, self.project / "models/tinydoc")
        (self.project / "build/release").mkdir(parents=True)
        (self.project / "build/release/vlcache").symlink_to(pathlib.Path(VLCACHE).resolve())
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("VLCACHE", "XDG_"))}
        self.env |= {"HOME": str(self.home), "PATH": f"{self.project}/build/release:{os.environ['PATH']}"}
        self.server = None

    def serve(self, command):
        """On a free port instead of the documents'."""
        p = [f"{k}={self.env[k]}" for k in ("HOME", "PATH")]
        self.server = ServerProcess(["env", "-C", self.project, *p, "VLCACHE_PORT=0", "bash", "-c", command.replace(f"--port {PORT}", "--port 0")])
        self.addCleanup(self.server.kill)

    def shown(self, command, typed):
        """Standard output and error of a command that ends with 0."""
        if command.startswith("curl "):
            command = command.replace(f":{PORT}/", f":{self.server.port}/").replace("curl ", "curl --fail-with-body ", 1)
        p = subprocess.run(["bash", "-c", command], cwd=self.project, env=self.env, input=typed, capture_output=True, text=True, timeout=500)
        self.assertEqual(p.returncode, 0, f"{command}\n{p.stdout}{p.stderr}")
        return p.stdout + p.stderr

    def see(self, name, slow):
        """Runs the commands of a document that are slow, or those that are not."""
        for found, seen in zip(documents()[name], SEEN[name]):
            if seen.elsewhere or seen.slow != slow: continue
            if " serve " in found.command:
                self.serve(found.command)
                continue
            text = self.shown(found.command, seen.typed)
            for pattern in (*seen.output, *map(re.escape, seen.comment)):
                self.assertRegex(text, pattern, found.command)
            for file in seen.files:
                self.assertTrue((self.project / file).is_file(), f"{found.command}: {file}")
            if slow: print(f"$ {found.command}\n{text}", flush=True)

    def test_readme(self):
        self.see("README.md", slow=False)
        self.assertEqual(oct((self.home / ".cache/vlcache").stat().st_mode & 0o777), "0o700")
        again = self.shown("build/release/vlcache chat -m models/tinydoc --session page --cache-disk ~/.cache/vlcache", "What is the DATE?\n/quit\n")
        self.assertIn("DATE: 2026-03-14", again)
        self.assertIn("session page: 1 question", again)

    def test_server(self):
        self.see("docs/server/README.md", slow=False)

    def test_other_documents(self):
        for name in SEEN:
            if name not in ("README.md", "docs/server/README.md"): self.see(name, slow=False)

    if "VLCACHE_SLOW_COMMANDS" in os.environ:  # `make readme`

        def test_slow_ones(self):
            for name in SEEN:
                self.see(name, slow=True)


if __name__ == "__main__":
    unittest.main()
