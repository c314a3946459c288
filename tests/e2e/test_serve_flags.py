"""Every flag of `vlcache serve` about requests and caches takes effect, and a request's own field wins over it."""
import base64
import http.client
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
import unittest
from concurrent import futures

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, RedisCluster, RedisServer, free_port, make_certificates, run
from answering_model import make
from pdf_maker import make_pdf
from server import ServerProcess
from test_abuse import asking, png
from test_server import QUESTION, about


def flags_of_help(*groups):
    """The flags that `serve --help-all` lists under these headings."""
    found, group = [], ""
    for line in run("serve", "--help-all").stdout.splitlines():
        if re.match(r"^[A-Z].*:$", line):
            group = line[:-1]
        elif group in groups and (match := re.match(r"^  (?:-\w, |    )(--[a-z-]+)", line)):
            found.append(match[1])
    return found


class ServeFlags(ProgramTest):
    model = MODEL

    def serve(self, *flags):
        server = ServerProcess([VLCACHE, "serve", "-m", self.model, "--port", "0", "--dtype", "f32", *flags]).ready()
        self.addCleanup(server.kill)
        return server

    def ask(self, server, body=None, **more):
        response = server.answer("POST", "/v1/chat/completions", {**(body or about(PAGE)), **more})
        self.assertEqual(response.status, 200, response.text)
        return json.loads(response.text)

    def text(self, *args, **more):
        return self.ask(*args, **more)["choices"][0]["message"]["content"]

    def test_every_flag_has_a_test(self):
        tried = {name[len("test_"):].replace("_", "-") for name in dir(self) if name.startswith("test_")}
        flags = flags_of_help("Sampling", "Answer", "Compression and reuse", "Cache")
        self.assertGreater(len(flags), 30, flags)
        for flag in flags:
            self.assertIn("flag-" + flag[2:], tried, f"no test of {flag}")

    # Fields of requests: what a server's flag does, a request's field does, too; the field wins.
    def changes(self, flag, value, field, other, seen, body=None):
        """`seen` of the answer changes under the flag, and is that of a request with the field; `other` wins over the flag.
        field, other: fields of a body."""
        plain, flagged = self.serve(), self.serve(*([flag] if value is None else [flag, value]))
        self.assertNotEqual(seen(self.ask(plain, body)), seen(self.ask(flagged, body)), flag)
        self.assertEqual(seen(self.ask(plain, body, **field)), seen(self.ask(flagged, body)), flag)
        self.assertEqual(seen(self.ask(plain, body, **other)), seen(self.ask(flagged, body, **other)), flag)
        self.assertNotEqual(seen(self.ask(flagged, body, **other)), seen(self.ask(flagged, body)), flag)

    @staticmethod
    def content(answer):
        return answer["choices"][0]["message"]["content"]

    @staticmethod
    def n_tokens(answer):
        return answer["usage"]["completion_tokens"]

    def test_flag_max_tokens(self):
        body = {k: v for k, v in about(PAGE).items() if k != "max_tokens"}
        self.changes("--max-tokens", "3", {"max_tokens": 3}, {"max_tokens": 2}, self.n_tokens, body)

    def test_flag_min_tokens(self):
        self.changes("--min-tokens", "20", {"min_tokens": 20}, {"min_tokens": 0}, self.n_tokens)
        short = self.serve("--min-tokens", "20")
        self.assertEqual(self.n_tokens(self.ask(short, max_tokens=15)), 15)  # max_tokens comes first
        self.assertNotEqual(self.text(short, stop=["TOTAL"]), "")  # a stop text does not end it before

    @unittest.skipIf(shutil.which("pdftocairo") is None, "poppler-utils is not installed")
    def test_flag_pdf_text(self):
        data = "data:application/pdf;base64," + base64.b64encode(make_pdf("First")).decode()
        body = {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": data}}, {"type": "text", "text": "a"}]}], "max_tokens": 1}
        seen = lambda answer: answer["usage"]["prompt_tokens"]
        self.changes("--pdf-text", "on", self.ours(pdf_text=True), self.ours(pdf_text=False), seen, body)

    # A question about a black page, to a model that takes images of any size.
    GRIDS = ROOT / "tests/fixtures/models/qwen3-vl-deepstack"
    BLACK = {**asking(png(96, 96, color=2)), "temperature": 0, "logprobs": True}

    def test_flags_of_image_tokens(self):
        self.model = self.GRIDS
        seen = lambda answer: answer["usage"]["prompt_tokens"]
        self.changes("--max-image-tokens", "4", {"max_image_tokens": 4}, {"max_image_tokens": 100}, seen, self.BLACK)
        self.changes("--min-image-tokens", "100", {"min_image_tokens": 100}, {"min_image_tokens": 0}, seen, self.BLACK)

    def test_flag_image_dedup(self):
        self.model = self.GRIDS
        seen = lambda answer: answer["usage"]["prompt_tokens"]
        self.changes("--image-dedup", "0", {"vlcache": {"image_dedup": 0}}, {"vlcache": {"image_dedup": -1}}, seen, self.BLACK)
        with self.assertRaisesRegex(RuntimeError, r"this one \(llava\) takes tiles of a fixed size"):
            ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--image-dedup", "0"])

    def test_flag_image_dedup_weights(self):
        self.model = self.GRIDS
        seen = lambda answer: [round(token["logprob"], 4) for token in answer["choices"][0]["logprobs"]["content"]]
        body = {**self.BLACK, "vlcache": {"image_dedup": 0}}
        on, off = ({"vlcache": {"image_dedup": 0, "image_dedup_weights": weights}} for weights in (True, False))
        self.changes("--image-dedup-weights", "on", on, off, seen, body)

    def test_flag_video_prune(self):
        self.model = self.GRIDS
        frame = "data:image/png;base64," + base64.b64encode(png(96, 96, color=2)).decode()
        content = [{"type": "video", "video": [frame] * 6}, {"type": "text", "text": "a"}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        seen = lambda answer: answer["usage"]["prompt_tokens"]
        self.changes("--video-prune", "0.5", self.ours(video_prune=0.5), self.ours(video_prune=0), seen, body)
        with self.assertRaisesRegex(RuntimeError, r"the model \(llava\) takes no video"):
            ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--video-prune", "0.5"])

    def test_flag_reuse_similar(self):
        """The second page takes the KV of the first one, which differs in its last line."""
        first, second = (asking(png(96, 96, color=2, last=last)) for last in (10, 200))
        how = {"reuse": "static:r=0.1", "explain": True}
        seen = lambda answer: "similar_to" in answer["vlcache"]["cache"]["images"][0]
        self.model = self.GRIDS
        def similar(server, **ours):
            self.ask(server, first, vlcache={**how, **ours})
            return seen(self.ask(server, second, vlcache={**how, **ours}))
        self.assertFalse(similar(self.serve()))
        self.assertTrue(similar(self.serve(), reuse_similar=True))
        self.assertTrue(similar(self.serve("--reuse-similar", "on")))
        self.assertFalse(similar(self.serve("--reuse-similar", "on"), reuse_similar=False))

    # Of random choices: as if the request had said it.
    RANDOM = {**about(PAGE), "temperature": 3.0, "seed": 5, "max_tokens": 12}

    def test_flag_temperature(self):
        body = {k: v for k, v in self.RANDOM.items() if k != "temperature"}
        self.changes("--temperature", "3", {"temperature": 3}, {"temperature": 0}, self.content, body)

    def test_flag_seed(self):
        body = {k: v for k, v in self.RANDOM.items() if k != "seed"}
        server, free = self.serve("--seed", "7"), self.serve()
        self.assertEqual(len({self.text(server, body) for _ in range(4)}), 1)
        self.assertEqual(self.text(server, body), self.text(free, body, seed=7))
        self.assertEqual(self.text(server, body, seed=8), self.text(free, body, seed=8))
        self.assertGreater(len({self.text(server, body, seed=-1) for _ in range(4)}), 1)
        self.assertGreater(len({self.text(free, body) for _ in range(4)}), 1)  # without the flag each draws its own
        self.assertEqual(self.text(server, body, seed=None), self.text(server, body))  # null is not set

    def test_flag_top_k(self):
        self.changes("--top-k", "1", {"top_k": 1}, {"top_k": -1}, self.content, self.RANDOM)

    def test_flag_top_p(self):
        self.changes("--top-p", "0.01", {"top_p": 0.01}, {"top_p": 1}, self.content, self.RANDOM)

    def test_flag_min_p(self):
        self.changes("--min-p", "1", {"min_p": 1}, {"min_p": 0}, self.content, self.RANDOM)

    def test_flag_repetition_penalty(self):
        self.changes("--repetition-penalty", "50", {"repetition_penalty": 50}, {"repetition_penalty": 1}, self.content)

    def test_flag_presence_penalty(self):
        self.changes("--presence-penalty", "100", {"presence_penalty": 100}, {"presence_penalty": 0}, self.content)

    def test_flag_frequency_penalty(self):
        self.changes("--frequency-penalty", "100", {"frequency_penalty": 100}, {"frequency_penalty": 0}, self.content)

    def first_token(self):
        return self.json("run", "-m", MODEL, "--dtype", "f32", "-i", PAGE, "--json", "--temperature", "0", QUESTION)["token_ids"][0]

    def test_flag_logit_bias(self):
        token = self.first_token()
        self.changes("--logit-bias", f"{token}=-100", {"logit_bias": {str(token): -100}}, {"logit_bias": {str(token): 1}}, self.content)

    def test_flag_stop(self):
        self.changes("--stop", "OT", {"stop": ["OT"]}, {"stop": []}, self.content)

    def test_flag_stop_token(self):
        self.changes("--stop-token", str(self.first_token()), {"stop_token_ids": [self.first_token()]}, {"stop_token_ids": []}, self.n_tokens)

    def test_flag_ignore_eos(self):
        self.changes("--ignore-eos", None, {"ignore_eos": True}, {"ignore_eos": False}, self.n_tokens)

    def test_flag_logprobs(self):
        alternatives = lambda answer: [len(t["top_logprobs"]) for t in (answer["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.changes("--logprobs", "2", {"logprobs": True, "top_logprobs": 2}, {"logprobs": False}, alternatives)
        text = json.loads(self.serve("--logprobs", "2").answer("POST", "/v1/completions", {"prompt": "The", "max_tokens": 2}).text)
        self.assertEqual(len(text["choices"][0]["logprobs"]["top_logprobs"][0]), 2)

    def test_flag_json_schema(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
        path = self.write("schema.json", json.dumps(schema))
        wanted = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        self.changes("--json-schema", path, wanted, {"response_format": {"type": "text"}}, self.content)
        server = self.serve("--json-schema", path)
        self.assertIn("n", json.loads(self.text(server)))
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        called = self.ask(server, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=64)  # a form by default is for answers, not for calls
        self.assertEqual(called["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f")

    # Policies.
    KV = {**about(PAGE), "vlcache": {"kv": "snapkv", "kv_budget": 0.2, "explain": True}}

    def slots(self, answer):
        return answer["vlcache"]["kv"]["slots"]

    def ours(self, **fields):
        return {"vlcache": {**self.KV["vlcache"], **fields}}

    def test_flag_skip_special_tokens(self):
        self.model = self.folder / "mineru"
        make("mineru", self.model)
        self.changes("--skip-special-tokens", "off", {"skip_special_tokens": False}, {"skip_special_tokens": True}, self.content)

    def test_flag_explain(self):
        told = lambda answer: ("slots" in answer["vlcache"]["kv"], "images" in answer["vlcache"]["kv"])
        self.changes("--explain", None, {"vlcache": {"explain": True}}, {"vlcache": {"explain": False}}, told)

    def test_flag_query_aware(self):
        self.changes("--query-aware", "off", self.ours(query_aware=False), self.ours(query_aware=True), self.slots, self.KV)

    def test_flag_kv_evict_while_prefill(self):
        plain, flagged = [self.serve("--prefill-chunk", "64", *more) for more in ([], ["--kv-evict-while-prefill"])]
        peak = lambda *args, **more: self.ask(*args, **more)["vlcache"]["kv"]["peak_bytes"]
        self.assertLess(peak(flagged, self.KV), peak(plain, self.KV))
        self.assertEqual(peak(flagged, self.KV), peak(plain, self.KV, **self.ours(evict_while_prefill=True)))
        self.assertEqual(peak(plain, self.KV), peak(flagged, self.KV, **self.ours(evict_while_prefill=False)))

    def test_flag_shared_attention(self):
        """Four answers to one prompt read its KV together, and are the same."""
        body = {"messages": [{"role": "user", "content": "Which of these is the total? " * 40}], "max_tokens": 8, "temperature": 1, "seed": 5, "ignore_eos": True, "n": 4}
        def answers(*flags):
            server = self.serve(*flags)
            texts = [choice["message"]["content"] for choice in self.ask(server, body)["choices"]]
            metrics = server.answer("GET", "/metrics").text.decode()
            of = lambda name: float(re.search(r"vlcache:kv_%s_bytes_total{.*} (.*)" % name, metrics)[1])
            return texts, of("read"), of("shared_read")
        (on, read, saved), (off, read_alone, none) = answers(), answers("--shared-attention", "off")
        self.assertEqual(on, off)
        self.assertGreater(saved, 0)
        self.assertGreater(min(read, read_alone), 0)  # what a prompt reads depends on the time that its steps take
        self.assertEqual(none, 0)

    def test_flag_cache_exact(self):
        def cached(*flags):
            server = self.serve("--kv", "snapkv", "--kv-budget", "0.2", "--reuse", "exact", *flags)
            self.ask(server)
            return self.ask(server)["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached(), 0)
        self.assertGreater(cached("--cache-exact"), 200)

    # Reuse: the page, then the same page after other words.
    AFTER = {**about(PAGE), "vlcache": {"explain": True},
             "messages": [{"role": "system", "content": "Look closely."}, *about(PAGE)["messages"]]}

    def image(self, *flags):
        """Where the image of the second prompt came from."""
        server = self.serve(*flags)
        self.ask(server)
        return self.ask(server, self.AFTER)["vlcache"]["cache"]["images"][0]

    def test_flag_reuse(self):
        self.assertEqual([(i["source"], i["encoder"]) for i in (self.image("--reuse", "exact"), self.image("--reuse", "off"), self.image("--reuse", "vlcache"))],
                         [("computed", "hit"), ("computed", "computed"), ("ram", "hit")])
        server = self.serve("--reuse", "off")
        self.ask(server)
        mine = {**self.AFTER, "vlcache": {"reuse": "exact"}}
        self.assertEqual(self.ask(server, mine)["vlcache"]["cache"]["images"][0]["encoder"], "computed")  # nothing was kept
        self.assertEqual(self.ask(server, mine)["usage"]["prompt_tokens_details"]["cached_tokens"] > 200, True)

    def test_flag_reuse_margin(self):
        plan = json.loads((MODEL / "reuse_plan.json").read_text())
        plan["one_image"] = {"cases": 300, "equal": 270, "kl": 0}  # at most 13.4 % change
        path = self.write("plan.json", json.dumps(plan))
        self.assertEqual(self.image("--reuse-plan", path, "--reuse-margin", "0.2")["source"], "ram")
        self.assertEqual(self.image("--reuse-plan", path, "--reuse-margin", "0.1")["source"], "computed")

    def test_flag_reuse_plan(self):
        plan = json.loads((MODEL / "reuse_plan.json").read_text())
        plan["mean"], plan["shares"] = 0.5, [0.5] * len(plan["shares"])
        path = self.write("plan.json", json.dumps(plan))
        mine, shipped = [self.image("--reuse-margin", "1", *more) for more in (["--reuse-plan", path], [])]
        self.assertGreater(mine["recomputed_tokens"], 3 * shipped["recomputed_tokens"])

    def test_flag_reuse_shadow(self):
        plan = json.loads((MODEL / "reuse_plan.json").read_text())
        nothing = {"cases": 0, "equal": 0, "kl": 0}
        unmeasured = self.write("unmeasured.json", json.dumps({**plan, "one_image": nothing, "several_images": nothing, "looking": ""}))
        folder = self.folder / "cache"

        def measured(server):
            deadline = time.monotonic() + 60
            while (stats := json.loads(server.answer("GET", "/v1/cache/stats").text)["reuse"])["one_image"]["compared"] < 2:
                self.assertLess(time.monotonic(), deadline, stats)
                time.sleep(0.05)
            return stats

        flags = ("--reuse-plan", unmeasured, "--cache-disk", folder)
        first = self.serve(*flags)
        for before in ("Be brief.", "Read the page.", "Look at it."):
            body = about(PAGE, vlcache={"explain": True})
            body["messages"].insert(0, {"role": "system", "content": before})
            image = self.ask(first, body)["vlcache"]["cache"]["images"][0]
            self.assertEqual((image["source"], image["reason"]), ("computed", "reuse is being measured"))
        one = measured(first)["one_image"]
        self.assertEqual((one["compared"], one["open"]), (2, False))
        self.assertRegex(one["text"], r"^measured on 2 requests: \d+ % same .*; off until about \d+ more are$")
        self.assertIn('vlcache:reuse_compared{model_name="tinydoc",engine="0",kv_codec="f32",images="one"} 2.0\n', first.answer("GET", "/metrics").text.decode())
        first.kill()
        self.assertEqual(measured(self.serve(*flags))["one_image"]["compared"], 2)  # killed, not lost
        # What one server has counted opens reuse in all processes on the folder.
        [counts] = folder.glob("reuse-*.json")
        counts.write_text(json.dumps({**json.loads(counts.read_text()), "one_image": {"cases": 1000, "equal": 1000, "kl": 0}}))
        self.assertEqual(self.image("--cache-ram", "1GiB", *flags)["source"], "ram")
        self.assertNotIn("reuse", json.loads(self.serve(*flags, "--reuse-shadow", "0").answer("GET", "/v1/cache/stats").text))

    def test_other_weights_are_measured_again(self):
        self.model = self.copy_model()
        plan = json.loads((self.model / "reuse_plan.json").read_text())
        (self.model / "reuse_plan.json").write_text(json.dumps({**plan, "one_image": {"cases": 299, "equal": 299, "kl": 0}}))

        def second(server):
            self.ask(server)
            body = about(PAGE, vlcache={"explain": True})
            body["messages"].insert(0, {"role": "system", "content": "Be brief."})
            image = self.ask(server, body)["vlcache"]["cache"]["images"][0]
            return image["source"], image.get("reason", "")

        self.assertEqual(second(self.serve())[0], "ram")
        self.assertEqual(second(self.serve("--weights", "int8")), ("computed", "reuse is being measured"))

    def test_flag_reuse_origin(self):
        # The first prompt that has the image computes it once more by itself.
        explained = lambda server: self.ask(server, vlcache={"explain": True})["vlcache"]["cache"]["images"][0]
        first, neutral = [explained(self.serve("--reuse", "vlcache", "--reuse-origin", how)) for how in ("first", "neutral")]
        self.assertEqual(first["recomputed_tokens"], first["n_tokens"])
        self.assertGreater(neutral["recomputed_tokens"], neutral["n_tokens"])

    # What outlives the process.
    def source(self, *flags):
        """Where the image of the page comes from in a server of its own, if not with the whole prompt."""
        server = self.serve("--reuse", "vlcache", "--cache-prefixes", "off", *flags)
        answer = self.ask(server, vlcache={"explain": True})
        self.assertEqual(server.end(), 0)
        image = answer["vlcache"]["cache"]["images"][0]
        return image["source"]

    def test_flag_cache_disk(self):
        self.assertEqual([self.source("--cache-disk", self.folder / "kept") for _ in range(2)], ["computed", "disk"])

    def test_a_line_for_every_request_on_a_terminal(self):
        for more, expected in (((), True), (("--quiet",), False)):
            primary, secondary = pty.openpty()
            port = free_port()
            p = subprocess.Popen([VLCACHE, "serve", "-m", MODEL, "--port", str(port), *more], stdout=subprocess.DEVNULL, stderr=secondary)
            self.addCleanup(p.kill)
            os.close(secondary)
            shown = b""
            while b"/v1 serves" not in shown:
                shown += os.read(primary, 1000)
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            for path, body in (("/v1/completions", {"prompt": "a", "max_tokens": 1}), ("/v1/completions", {"prompt": "a", "top_p": 2})):
                c.request("POST", path, json.dumps(body))
                c.getresponse().read()
            p.send_signal(signal.SIGTERM)
            try:
                while piece := os.read(primary, 1000):
                    shown += piece
            except OSError:  # the other side is closed
                pass
            self.assertEqual(p.wait(), 0)
            os.close(primary)
            lines = sorted(line for line in shown.decode().splitlines() if line.startswith("POST "))  # each after its reply: in any order
            self.assertEqual(len(lines), 2 if expected else 0, shown)
            if expected:
                self.assertRegex(lines[0], r"^POST /v1/completions 200 found 0 of \d+ prompt tokens, 1 generated, \d+ ms$")
                self.assertRegex(lines[1], r"^POST /v1/completions 400 \d+ ms: top_p: expected")

    def test_scores_after_a_text(self):
        """As lm-eval asks: it sends no field that says where a context ends."""
        body = {"prompt": "Question: a b c d e f g h? Answer: 435.75", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        scores = lambda server: json.loads(server.answer("POST", "/v1/completions", body).text)["choices"][0]["logprobs"]
        flag, server = self.serve("--score-after", "Answer:"), self.serve()
        told = scores(flag)
        first = told["token_logprobs"].count(None)
        self.assertGreater(first, 5)
        self.assertTrue("".join(told["tokens"][:first]).endswith("Answer:"), told["tokens"])
        for a, b in zip(told["token_logprobs"][first:], scores(server)["token_logprobs"][first:]):
            self.assertAlmostEqual(a, b, delta=1e-3)
        self.assertEqual(flag.answer("POST", "/v1/completions", {**body, "prompt": "no such text"}).status, 400)

    def test_names_of_images_reach_replicas(self):
        kept = ("--cache-disk", self.folder / "kept")
        named = about(PAGE)
        named["messages"][0]["content"][0]["uuid"] = "page"
        alone = {**named, "messages": [{"role": "user", "content": [{"type": "image_url", "uuid": "page"}, *named["messages"][0]["content"][1:]]}]}
        one, two, other = self.serve(*kept), self.serve(*kept), self.serve()
        expected = self.text(one, named)
        self.assertEqual(self.text(two, alone), expected)
        taken = about(MODEL / "demo/table.png")
        taken["messages"][0]["content"][0]["uuid"] = "page"
        third = self.serve(*kept)
        self.assertEqual(third.answer("POST", "/v1/chat/completions", taken).status, 400)
        for server, body in ((other, alone), (two, {**alone, "cache_salt": "mine"})):
            r = server.answer("POST", "/v1/chat/completions", body)
            self.assertEqual(r.status, 404)
            self.assertIn(b"this replica has no image of this name", r.text)
        self.assertIn("named file", run("cache", "ls", self.folder / "kept").stdout)

    def test_flag_cache_salt(self):
        kept = ("--cache-disk", self.folder / "kept")
        self.assertEqual([self.source(*kept, "--cache-salt", salt) for salt in ("a", "b", "a")], ["computed", "computed", "disk"])

    def test_flag_cache_ttl(self):
        kept = ("--cache-disk", self.folder / "kept")
        self.source(*kept, "--cache-ttl", "1s")
        time.sleep(1.2)
        self.assertEqual([self.source(*kept, "--cache-ttl", ttl) for ttl in ("1s", "1h")], ["computed", "disk"])

    def test_flag_cache_admit(self):
        uses = lambda n: [self.source("--cache-disk", self.folder / n, "--cache-admit", n) for _ in range(3)]
        self.assertEqual(uses("1"), ["computed", "disk", "disk"])
        self.assertEqual(uses("2")[:2], ["computed", "computed"])

    def test_flag_cache_prefixes(self):
        def tokens(mode):
            """of the prompt that the third of three servers finds on disk"""
            for _ in range(3):
                server = self.serve("--cache-disk", self.folder / mode, *(() if mode == "default" else ("--cache-prefixes", mode)))
                answer = self.ask(server, vlcache={"explain": True})
                self.assertEqual(server.end(), 0)
            return answer["vlcache"]["cache"]["prefix_sources"].get("disk", 0)

        self.assertEqual([tokens(mode) > 200 for mode in ("default", "auto", "always", "off")], [True, True, True, False])

    def test_a_restarted_server_has_its_prompts(self):
        pages = [MODEL / f"demo/{name}.png" for name in ("invoice", "shapes", "table", "two-1", "two-2")]
        questions = [about(page, question, logprobs=True) for page in pages for question in ("What is the TOTAL?", "Which words are there?")]

        def rounds(server, n):
            """[(answers, share of the prompts' tokens that were found)]"""
            found = []
            for _ in range(n):
                with futures.ThreadPoolExecutor(4) as pool:
                    answers = list(pool.map(lambda body: self.ask(server, body), questions))
                usages = [a["usage"] for a in answers]
                tokens = [[t["token"] for t in a["choices"][0]["logprobs"]["content"]] for a in answers]
                found.append((tokens, sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages) / sum(u["prompt_tokens"] for u in usages)))
            return found

        kept = ("--cache-disk", self.folder / "kept")
        server = self.serve(*kept)
        (_, _), (before, rate_before), (never_stopped, _) = rounds(server, 3)
        self.assertEqual(server.end(), 0)
        # always: a busy machine may measure that loading takes longer than computing
        (after, rate_after), = rounds(self.serve(*kept, "--cache-prefixes", "always"), 1)
        self.assertGreater(rate_before, 0.9)
        self.assertGreater(rate_after, 0.9 * rate_before)
        self.assertEqual(after, never_stopped)

    def test_flag_cache_codec(self):
        self.assertNotEqual(self.image("--reuse", "vlcache", "--cache-codec", "int8")["form"], self.image("--reuse", "vlcache")["form"])

    def test_flag_cache_keep(self):
        kept, all = self.image("--reuse", "vlcache", "--cache-keep", "0.2:key_diff"), self.image("--reuse", "vlcache")
        self.assertLess(kept["kept_tokens"], all["kept_tokens"] / 2)

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_flag_cache_redis(self):
        self.redis()

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_flag_cache_redis_password_file(self):
        self.redis(password="hunter2")

    @unittest.skipUnless(shutil.which("redis-server") and shutil.which("openssl"), "redis-server or openssl is not installed")
    def test_flag_cache_redis_ca(self):
        """With --cache-redis-cert and --cache-redis-key, without which the server refuses its clients."""
        make_certificates(self.folder)
        path = lambda name: str(self.folder / name)
        server = RedisServer(self.folder, "--tls-port", port := free_port(), "--tls-ca-cert-file", path("ca.crt"), "--tls-cert-file", path("server.crt"), "--tls-key-file", path("server.key"))
        self.addCleanup(server.end)
        flags = ("--cache-redis", f"rediss://127.0.0.1:{port}", "--cache-redis-ca", path("ca.crt"))
        client = ("--cache-redis-cert", path("client.crt"), "--cache-redis-key", path("client.key"))
        self.assertEqual([self.source(*flags, *client) for _ in range(2)], ["computed", "redis"])
        self.assertEqual([self.source(*flags[:2], *client), self.source(*flags)], ["computed", "computed"])

    def test_flag_cache_redis_cert(self):  # what it does: test_flag_cache_redis_ca
        self.fails("serve", "-m", MODEL, "--port", "0", "--cache-redis", "rediss://h", "--cache-redis-cert", PAGE, says="found one")

    def test_flag_cache_redis_key(self):
        self.fails("serve", "-m", MODEL, "--port", "0", "--cache-redis", "rediss://h", "--cache-redis-key", PAGE, says="found one")

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_flag_cache_redis_allow(self):
        cluster = RedisCluster(self.folder, "--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname", n=1)
        self.addCleanup(cluster.end)
        flags = ("--cache-redis", f"redis+cluster://{cluster.seeds()}")
        self.assertEqual([self.source(*flags) for _ in range(2)], ["computed", "computed"])  # localhost is another name
        self.assertEqual([self.source(*flags, "--cache-redis-allow", "localhost") for _ in range(2)], ["computed", "redis"])

    def test_flag_cache_first_use(self):
        """A page that a server was asked about once is found by another one, though the first was killed soon after."""
        self.model = self.copy_model()
        os.remove(self.model / "reuse_plan.json")
        disk = ("--cache-disk", str(self.folder / "cache"))
        first, second = self.serve(*disk), self.serve(*disk, "--cache-first-use", "0")
        written = lambda server: float(re.search(r"^vlcache:first_use_bytes_total\S* (\S+)", server.answer("GET", "/metrics").text.decode(), re.M)[1])
        self.ask(second, about(MODEL / "demo/table.png"))
        self.ask(first)
        until = time.monotonic() + 20
        while not (written(first) > 0 and run("cache", "ls", self.folder / "cache").stdout.count(" prompt ") > 0) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(0.3)
        first.process.send_signal(signal.SIGKILL)
        self.ask(second)
        usage = self.ask(self.serve(*disk, "--cache-prefixes", "always"))["usage"]  # at any measured speed of the disk
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 0.9 * usage["prompt_tokens"], usage)
        self.assertEqual(written(second), 0)

    def test_invalid_flags_are_errors_at_startup(self):
        schema = self.write("schema.json", '{"type": "array", "uniqueItems": true}')
        for flags, says in ((["--json-schema", schema], "uniqueItems"), (["--logit-bias", "99999999=1"], "logit_bias"), (["--top-p", "2"], "top_p")):
            self.fails("serve", "-m", MODEL, "--port", "0", "--reuse", "exact", *flags, says=says)

    def redis(self, password=""):
        server = RedisServer(self.folder, *(["--requirepass", password] if password else []))
        self.addCleanup(server.end)
        flags = ("--cache-redis", f"redis://127.0.0.1:{server.port}")
        if password:
            flags += ("--cache-redis-password-file", self.write("password", password))
        self.assertEqual([self.source(*flags) for _ in range(2)], ["computed", "redis"])
        if password:
            self.assertEqual(self.source(*flags[:2]), "computed")  # without the password there is nothing


if __name__ == "__main__":
    unittest.main()
