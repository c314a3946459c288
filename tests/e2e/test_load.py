"""`vlcache serve` under load: many streams for a minute, an agent whose history grows, and a server that is killed in the middle of all that."""
import concurrent.futures
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import time
import unittest

from program import MODEL, ROOT, SHADOWED, VLCACHE, ProgramTest, run
from test_answer_forms import copy_model

LOAD = ROOT / "studies/load"
sys.path.insert(0, str(LOAD))
import agent_loop  # noqa: E402
import soak  # noqa: E402


class Load(ProgramTest):
    def script(self, name, *args, timeout=600):
        p = subprocess.run([sys.executable, str(LOAD / name), *map(str, args), VLCACHE], capture_output=True, text=True, timeout=timeout)
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        return p.stdout.splitlines()

    def test_many_streams(self):
        seconds = float(os.environ.get("VLCACHE_TEST_SOAK_SECONDS", 15))
        growth = ("--growth", 10) if SHADOWED else ()
        said = json.loads(self.script("soak.py", "--seconds", seconds, *growth, timeout=5 * seconds + 600)[0])
        self.assertEqual((said["wrong"], said["idle"], said["exit"]), (0, True, 0))
        self.assertGreater(said["prefix_hits"], 0)
        self.assertGreater(said["evictions"], 0)

    def test_a_growing_history_with_images(self):
        model = copy_model()
        self.addCleanup(shutil.rmtree, model)
        *steps, verdict = self.script("agent_loop.py", "-m", model, "--steps", 6, "--check", 2, "--dtype", "f32")
        steps = [json.loads(line) for line in steps]
        self.assertEqual([s["step"] for s in steps], [1, 2, 3, 4, 5, 6, 2, 4, 6])
        self.assertTrue(all(s["equal"] for s in steps[6:]))
        self.assertEqual(verdict, "0 answers differ")
        for before, step in zip(steps, steps[1:6]):  # all of the step before is there, but for how its answer is spelled
            self.assertGreaterEqual(step["cached_tokens"], before["prompt_tokens"] - 1)

    def test_large_images_beside_answers(self):
        """Those who decode images and the one who computes do not get in each other's way."""
        server = soak.Server(VLCACHE)
        ask = lambda i: server.ask({"messages": [{"role": "user", "content": [agent_loop.image(agent_loop.screenshot(i)), agent_loop.text("What?")]}], "max_tokens": 30, "ignore_eos": True, "temperature": 0})
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(ask, range(24)))
        server.end()
        self.assertTrue(all(answers))

    def test_killed_and_started_again(self):
        """What a killed server has saved is good, or is not there: the next one's answers are right."""
        pool = soak.make_pool(24, seed=2)
        alone = soak.Server(VLCACHE, "--cache-ram", "0", "--reuse", "off")
        expected = [alone.ask(body) for body in pool]
        alone.end()
        cache = self.folder / "cache"
        r = random.Random(3)
        n_answers = 0
        for seconds in (0.3, 0.8, 2, 4, 8):
            # A machine with other work may store nothing in the first rounds.
            if seconds > 2 and run("cache", "ls", cache).stdout: break
            server = soak.Server(VLCACHE, "--cache-disk", str(cache), "--cache-ram", "64MiB")
            until = time.monotonic() + seconds

            def draw(seed):
                choose, n = random.Random(seed), 0
                while True:
                    i = choose.randrange(len(pool))
                    try:
                        answer = server.ask(pool[i], stream=choose.random() < 0.5)
                    except (OSError, http.client.HTTPException, ValueError):
                        self.assertGreater(time.monotonic(), until)  # not before it was killed
                        return n
                    self.assertEqual(answer, expected[i])
                    n += 1

            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                streams = [threads.submit(draw, r.random()) for _ in range(8)]
                time.sleep(max(0, until - time.monotonic()) + 0.01)
                server.kill()
                n_answers += sum(s.result() for s in streams)
        self.assertGreater(n_answers, 0)
        self.assertEqual(run("cache", "verify", cache).returncode, 0)
        server = soak.Server(VLCACHE, "--cache-disk", str(cache))
        self.assertEqual([server.ask(body) for body in pool], expected)
        self.assertGreater(server.get("/v1/cache/stats")["tiers"]["disk"]["hits"], 0)
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    unittest.main()
