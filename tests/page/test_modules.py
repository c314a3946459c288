"""The page's pure modules (Markdown, conversation files, versions, sentences) without a browser: modules.mjs, run by the node that
Playwright brings, else by one that is installed."""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VLCACHE = os.environ.get("VLCACHE", str(ROOT / "build/release/vlcache"))
MODEL = ROOT / "models/tinydoc"
PAGE = MODEL / "demo/invoice.png"
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

    def test_the_page_imports_what_the_terminal_saves(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "saved.json"
            subprocess.run([VLCACHE, "chat", "-m", MODEL, "-i", PAGE, "--max-tokens", "4"], input=f"Which?\n/save {saved}\n", text=True, check=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
            shutil.copytree(ROOT / "src/server/page/files", pathlib.Path(folder) / "files")
            (pathlib.Path(folder) / "files/package.json").write_text('{"type": "module"}')
            script = f"""import {{imported}} from '{folder}/files/conversation_file.js'; import fs from 'fs';
                const read = await imported(fs.readFileSync('{saved}', 'utf8'), 'saved.json', {{picture: async ({{name, url}}) => ({{id: 7, name, width: 1, height: 1, url}})}});
                console.log(JSON.stringify(read));"""
            run = subprocess.run([NODE, "--input-type=module", "-e", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            self.assertEqual(run.returncode, 0, run.stdout)
            read = json.loads(run.stdout)
            answer = json.loads(saved.read_text())["messages"][1]["answers"][0]["text"]
        self.assertEqual((read["name"], [m["role"] for m in read["messages"]]), ("Which?", ["user", "assistant"]))
        self.assertEqual((read["messages"][0]["pictures"][0]["name"], read["messages"][1]["answers"][0]["text"]), (PAGE.name, answer))
        self.assertEqual(base64.b64decode(read["pictures"][0]["url"].removeprefix("data:image/png;base64,")), PAGE.read_bytes())


if __name__ == "__main__":
    unittest.main()
