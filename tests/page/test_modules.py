"""The page's pure modules (Markdown, conversation files, versions, sentences) without a browser: modules.mjs, run by the node that
Playwright brings, else by one that is installed."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
try:
    from playwright._impl._driver import compute_driver_executable
    NODE = compute_driver_executable()[0]
except ImportError:
    NODE = shutil.which("node")


@unittest.skipUnless(NODE, "there is no node (tools/install_deps.sh)")
class Modules(unittest.TestCase):
    def test_modules(self):
        with tempfile.TemporaryDirectory() as folder:
            files = pathlib.Path(folder) / "files"
            shutil.copytree(ROOT / "src/server/page/files", files)
            (files / "package.json").write_text('{"type": "module"}')  # else node reads .js as its older kind
            run = subprocess.run([NODE, ROOT / "tests/page/modules.mjs", files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertGreater(run.stdout.count("ok "), 10)


if __name__ == "__main__":
    unittest.main()
