"""`make install`: its folder under another name, used from an empty folder by another user, and removed again."""
import os
import pathlib
import shutil
import subprocess
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest
from test_video import CLIP, WATCHER

BUILD = pathlib.Path(VLCACHE).parent
TEXTS = {"man": "share/man/man1/vlcache.1", "bash": "share/bash-completion/completions/vlcache", "zsh": "share/zsh/site-functions/_vlcache",
         "fish": "share/fish/vendor_completions.d/vlcache.fish"}
FILES = {"bin/vlcache", "libexec/vlcache/vlcache-video", "lib/systemd/system/vlcache.service", "share/vlcache/server.toml", *TEXTS.values()}


@unittest.skipUnless((BUILD / "cmake_install.cmake").exists(), "the program is not in its build folder")
class Install(ProgramTest):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.empty = self.folder / "empty"
        self.empty.mkdir()

    def script(self, *args, **env):
        return subprocess.run([ROOT / "tools/install.sh", *args, BUILD], capture_output=True, text=True, timeout=120, env={**os.environ, **env}, cwd=self.empty)

    def files(self, prefix):
        return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}

    def installed(self, prefix, *args):
        """The output of the installed program for a user without rights, a home or a variable."""
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
        p = subprocess.run([*other, prefix / "bin/vlcache", *map(str, args)], capture_output=True, text=True, timeout=120, env={}, cwd=self.empty)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def test_another_user_uses_it_and_it_is_removed(self):
        for model in (MODEL, WATCHER):  # where the other user can read them, too
            shutil.copytree(model, self.folder / model.name)
        (self.empty / "page.png").write_bytes(PAGE.read_bytes())
        (self.empty / "clip.mp4").write_bytes(CLIP.read_bytes())
        subprocess.run(["chmod", "-R", "a+rX", self.folder], check=True)
        prefix = self.folder / "prefix"
        old = os.umask(0o077)  # as some have it for root
        self.addCleanup(os.umask, old)
        p = self.script(PREFIX=f"{prefix}/")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(self.files(prefix), FILES)
        self.assertEqual(set(p.stdout.splitlines()), {f"{prefix}/{name}" for name in FILES})
        ask = ("--temperature", "0", "--packed-cache", "off")
        self.assertIn("435.75", self.installed(prefix, "run", "-m", "../tinydoc", *ask, "-i", "page.png", "What is the TOTAL?"))
        self.installed(prefix, "run", "-m", f"../{WATCHER.name}", *ask, "-n", "1", "-v", "clip.mp4,max_frames=2", "hi")
        for name, path in TEXTS.items():
            self.assertEqual((prefix / path).read_text(), self.installed(prefix, "completions", name))
        if shutil.which("groff"):
            p = subprocess.run(["groff", "-man", "-ww", "-Kutf8", "-Tutf8", prefix / TEXTS["man"]], capture_output=True, text=True, timeout=120)
            self.assertEqual((p.returncode, p.stderr), (0, ""))
        unit = (prefix / "lib/systemd/system/vlcache.service").read_text()
        self.assertIn(f"\nExecStart={prefix}/bin/vlcache --config ", unit)
        self.assertNotIn("/usr/local", unit)
        self.assertEqual(self.script("--remove", PREFIX="/usr").returncode, 2)  # another prefix: nothing is removed
        self.assertEqual(self.files(prefix), FILES)
        self.assertEqual(self.script("--remove", PREFIX=str(prefix)).returncode, 0)
        self.assertEqual(self.files(prefix), set())
        self.assertFalse((prefix / "libexec/vlcache").exists() or (prefix / "share/vlcache").exists())
        self.assertIn("nothing was installed", self.script("--remove", PREFIX=str(prefix)).stderr)

    def test_a_package_is_staged(self):
        stage = self.folder / "stage"
        self.assertEqual(self.script(PREFIX="/opt/vlcache", DESTDIR=str(stage)).returncode, 0)
        self.assertEqual(self.files(stage), {f"opt/vlcache/{name}" for name in FILES})
        self.assertIn("\nExecStart=/opt/vlcache/bin/vlcache ", (stage / "opt/vlcache/lib/systemd/system/vlcache.service").read_text())
        self.assertEqual(self.script("--remove", PREFIX="/opt/vlcache", DESTDIR=str(stage)).returncode, 0)
        self.assertEqual(self.files(stage), set())
        self.assertIn("absolute path", self.script(PREFIX="here").stderr)


if __name__ == "__main__":
    unittest.main()
