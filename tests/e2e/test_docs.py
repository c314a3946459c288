"""The `curl` lines of docs/server/README.md, as they stand there; the generated tables of docs/models.md and the fixtures."""
import json
import re
import shutil
import subprocess
import sys
import unittest

from program import ROOT
from test_server import Server

DOCUMENTED = "http://127.0.0.1:8080"


@unittest.skipIf(shutil.which("curl") is None, "curl is not installed")
class Examples(Server):
    FLAGS = ("--name", "tinydoc")

    def test_documented_requests_are_answered(self):
        lines = [line for line in (ROOT / "docs/server/README.md").read_text().splitlines() if line.startswith("curl ")]
        routes = set()
        for line in lines:
            routes.add(re.search(DOCUMENTED + r"([^ ]*)", line)[1])
            command = line.replace(DOCUMENTED, f"http://127.0.0.1:{self.port}").replace("curl ", "curl --fail-with-body ", 1)
            p = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
            self.assertEqual(p.returncode, 0, f"{line}\n{p.stdout}{p.stderr}")
            if '"stream": true' in line:
                self.assertTrue(p.stdout.rstrip().endswith("data: [DONE]"), p.stdout)
            elif "/metrics" not in line:
                self.assertIsNone(json.loads(p.stdout).get("error"), p.stdout)
        self.assertGreaterEqual(len(lines), 10)
        self.assertTrue({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize", "/metrics", "/v1/cache/stats"} <= routes)


class Models(unittest.TestCase):
    def test_tables_are_those_of_the_fixtures(self):
        sys.path.insert(0, str(ROOT / "tools"))
        import model_table
        for name, (path, table) in model_table.TABLES.items():
            self.assertEqual(model_table.block((ROOT / path).read_text(), name), list(table()), f"{path}: renew the table with python3 tools/model_table.py ({name})")
        page = (ROOT / "docs/models.md").read_text()
        for family in model_table.cases():
            self.assertIn(f"`{family}`", page)


if __name__ == "__main__":
    unittest.main()
