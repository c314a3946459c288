"""The commands of docs/start.md; the generated tables of docs/models.md and the fixtures."""
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, RedisServer, run
from nginx import NGINX, Nginx
from server import ServerProcess
from test_server import about

DOCUMENTED = "http://127.0.0.1:8080"


class Start(ProgramTest):
    """docs/start.md, with tinydoc under the name of its model."""

    TEXT = (ROOT / "docs/start.md").read_text()

    def setUp(self):
        super().setUp()
        self.env = {"HOME": str(self.folder), "HF_HUB_CACHE": str(self.folder / "hub")}
        snapshot = self.folder / "hub/models--Qwen--Qwen3-VL-2B-Instruct/snapshots/0"
        snapshot.mkdir(parents=True)
        for file in MODEL.iterdir():
            if file.name != "reuse_plan.json":  # a model that was just fetched has none
                (snapshot / file.name).symlink_to(file)

    def lines(self, beginning):
        return [line for line in self.TEXT.splitlines() if line.startswith(beginning)]

    def shell(self, line):
        p = subprocess.run(["bash", "-c", f'vlcache() {{ "{VLCACHE}" "$@"; }}; {line}'], cwd=ROOT, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 0, f"{line}\n{p.stdout}{p.stderr}")
        return p.stdout

    def serve(self, line):
        """The server of a line, on a port of its own."""
        words = shlex.split(re.sub(r" --port \d+", "", line).replace("~", str(self.folder)))[1:]
        server = ServerProcess(["env", *(f"{name}={value}" for name, value in self.env.items()), VLCACHE, *words, "--port", "0"])
        self.addCleanup(server.end)
        return server.ready()

    def cached_share(self, server):
        usage = json.loads(server.answer("POST", "/v1/chat/completions", about(PAGE)).text)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

    def wait_for_a_prompt(self, tier):
        """Until the tier has the page that a server was asked about."""
        until = time.monotonic() + 20
        while " prompt " not in run("cache", "ls", tier).stdout:
            self.assertLess(time.monotonic(), until, "no prompt was stored")
            time.sleep(0.05)

    def test_commands_that_end(self):
        lines = [line for line in self.lines("vlcache ") if not line.startswith("vlcache serve")]
        said = {line.split()[1]: self.shell(line.replace("bench/shapes/qwen3-vl-2b.json", "models/tinydoc/config.json")) for line in lines}
        self.assertIn("435.75", said["run"])
        self.assertRegex(said["info"], r"--cache-ram +1\.07 GB.*\n +--kv-memory +2\.15 GB")
        header = next(line for line in self.TEXT.splitlines() if line.startswith("| model | weights |"))
        self.assertEqual(said["bench"].splitlines()[0], header)  # as the table of the page

    def test_a_server_answers(self):
        first, *_ = self.lines("vlcache serve")
        server = self.serve(first)
        for line in self.lines("curl "):
            self.assertIn("435.75", self.shell(line.replace(DOCUMENTED, f"http://127.0.0.1:{server.port}")))
        self.assertTrue((self.folder / ".cache/vlcache").is_dir())

    def test_two_servers_share_a_folder(self):
        a, b = (self.serve(line) for line in self.lines("vlcache serve") if "--port 808" in line)
        self.assertEqual(self.cached_share(a), 0)
        self.wait_for_a_prompt(self.folder / ".cache/vlcache")
        self.assertGreater(self.cached_share(b), 0.9)

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_a_server_with_redis(self):
        redis = RedisServer(self.folder, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru")
        self.addCleanup(redis.end)
        line, = (line for line in self.lines("vlcache serve") if "redis://127.0.0.1:6379" in line)
        self.assertEqual(self.cached_share(self.serve(line.replace("6379", str(redis.port)))), 0)
        self.wait_for_a_prompt(f"redis://127.0.0.1:{redis.port}")

    @unittest.skipUnless(NGINX, "nginx is missing (tools/install_deps.sh test)")
    def test_nginx_in_front(self):
        block = re.search(r"```nginx\n(.*?)```", self.TEXT, re.S)[1]
        line, = (line for line in self.lines("vlcache serve") if "--allowed-host chat.example" in line)
        nginx = Nginx(self.serve(line).port, block)
        self.addCleanup(nginx.end)
        large = json.dumps(about(PAGE, ignored="x" * 3_000_000))  # more than nginx accepts unless it is told to
        for host, status in (("chat.example", 200), ("other.example", 403)):
            c = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=60)
            c.request("POST", "/v1/chat/completions", large, {"content-type": "application/json", "host": host, "origin": "https://" + host})
            reply = c.getresponse()
            self.assertEqual(reply.status, status, reply.read())
            c.close()


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
