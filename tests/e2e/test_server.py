"""`vlcache serve`, as clients meet it: answers, streams, errors, and clients that leave."""
import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import tempfile
import time
import unittest

from program import MODEL, PAGE, VLCACHE, ProgramTest
from nginx import NGINX, Nginx
from server import ServerProcess, data_of

QUESTION = "What is the TOTAL?"
# Short requests of each endpoint that streams, and the end of its streams.
ENDPOINTS = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}, "data: [DONE]\n\n"),
    "/v1/completions": ({"prompt": "The total", "max_tokens": 3}, "data: [DONE]\n\n"),
    "/v1/messages": ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}, 'data: {"type":"message_stop"}\n\n'),
    "/v1/responses": ({"input": "Hi", "max_output_tokens": 3}, "}}\n\n"),
}


def image_part(path):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()}}


def about(path, question=QUESTION, **more):
    return {"messages": [{"role": "user", "content": [image_part(path), {"type": "text", "text": question}]}], "max_tokens": 24, "temperature": 0, **more}


FORM = {"content-type": "multipart/form-data; boundary=b"}


def form(data, name="upload", **fields):
    """The body of an upload, as FORM says."""
    parts = [f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode() for key, value in {"purpose": "assistants", **fields}.items()]
    return b"".join(parts) + f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode() + data + b"\r\n--b--\r\n"


class Server(ProgramTest):
    FLAGS = ()
    MODEL = MODEL

    @classmethod
    def prepare(cls, folder):
        """Before the server starts: its FLAGS, and files for it in a folder that goes with it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        files = tempfile.TemporaryDirectory()
        cls.addClassCleanup(files.cleanup)
        cls.prepare(pathlib.Path(files.name))
        cls.server = ServerProcess([VLCACHE, "serve", "-m", cls.MODEL, "--port", "0", "--dtype", "f32", *cls.FLAGS])
        cls.process, cls.port = cls.server.process, cls.server.port
        while cls.answer("GET", "/health").status != 200:
            time.sleep(0.05)

    @classmethod
    def connect(cls, timeout=120):
        return cls.server.connect(timeout)

    @classmethod
    def answer(cls, method, path, body=None, headers={}):
        """The response, its bytes in .text."""
        return cls.server.answer(method, path, body, headers, cls.connect())

    @classmethod
    def tearDownClass(cls):
        cls.server.end()
        super().tearDownClass()

    def call(self, method, path, body=None, headers={}):
        r = self.answer(method, path, body, headers)
        return r.status, json.loads(r.text) if r.getheader("content-type").startswith("application/json") else r.text

    def chat(self, body, headers={}):
        status, answer = self.call("POST", "/v1/chat/completions", body, headers)
        self.assertEqual(status, 200, answer)
        return answer

    def events(self, body, path="/v1/chat/completions"):
        status, text = self.call("POST", path, {**body, "stream": True})
        self.assertEqual(status, 200, text)
        lines = list(data_of(text.decode().split("\n")))
        if path == "/v1/chat/completions":
            self.assertEqual(lines.pop(), "[DONE]")
        return [json.loads(line) for line in lines]

    def state(self):
        return self.call("GET", "/v1/cache/stats")[1]

    def wait_until_idle(self):
        for _ in range(600):
            if self.state()["requests"] == {"running": 0, "waiting": 0}:
                return
            time.sleep(0.05)
        self.fail("the server is still at work")


class Answers(Server):
    def test_an_answer_equals_that_of_run(self):
        alone = json.loads(self.ok("run", "-m", MODEL, "-i", PAGE, QUESTION, "--dtype", "f32", "--json", "-n", "24"))
        answer = self.chat(about(PAGE))
        choice = answer["choices"][0]
        self.assertEqual(choice["message"], {"role": "assistant", "content": alone["text"], "refusal": None})
        self.assertEqual(choice["finish_reason"], alone["finish_reason"])
        self.assertEqual(answer["usage"]["prompt_tokens"], alone["tokens"]["prompt"])
        self.assertEqual(answer["usage"]["completion_tokens"], alone["tokens"]["generated"])
        self.assertEqual(answer["object"], "chat.completion")
        again = self.chat(about(PAGE, vlcache={"explain": True}))
        self.assertEqual(again["choices"], answer["choices"])
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], alone["tokens"]["prompt"] - 1)
        self.assertEqual(again["vlcache"]["cache"]["images"][0]["source"], "prefix")
        self.assertIn("slots", again["vlcache"]["kv"])

    def test_a_stream_equals_the_whole_answer(self):
        whole = self.chat(about(PAGE))
        events = self.events(about(PAGE, stream_options={"include_usage": True}))
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]), whole["choices"][0]["message"]["content"])
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"])
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        self.assertEqual([e["usage"] for e in events[:-1]], [None] * (len(events) - 1))
        counted = self.events(about(PAGE, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        n = [e["usage"]["completion_tokens"] for e in counted]
        self.assertEqual(n, sorted(n))
        self.assertEqual((n[-2:], {e["usage"]["prompt_tokens"] for e in counted}), ([whole["usage"]["completion_tokens"]] * 2, {whole["usage"]["prompt_tokens"]}))
        self.assertNotIn("usage", self.events(about(PAGE))[0])
        self.assertEqual({e["id"] for e in events}, {events[0]["id"]})

    def test_concurrent_requests_get_their_own_answers(self):
        questions = [about(MODEL / "demo" / name, q) for name in ("invoice.png", "table.png") for q in (QUESTION, "What is the DATE?", "Read the page.", "Who?")]
        alone = [self.chat(q)["choices"][0]["message"]["content"] for q in questions]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda q: self.chat(q)["choices"][0]["message"]["content"], questions * 3))
        self.assertEqual(together, alone * 3)

    def test_several_answers(self):
        answer = self.chat(about(PAGE, n=3))
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2])
        self.assertEqual(len({c["message"]["content"] for c in answer["choices"]}), 1)  # greedy
        events = self.events(about(PAGE, n=2))
        for index in (0, 1):
            text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"] if c["index"] == index)
            self.assertEqual(text, answer["choices"][0]["message"]["content"])

    def test_sampling(self):
        ask = lambda seed: self.chat(about(PAGE, "Read the page.", temperature=2, seed=seed))["choices"][0]["message"]["content"]
        self.assertEqual(ask(1), ask(1))
        self.assertGreater(len({ask(seed) for seed in range(4)}), 1)
        text = self.chat(about(PAGE, "Read the page."))["choices"][0]["message"]["content"]
        cut = self.chat(about(PAGE, "Read the page.", stop=[text[3:6]]))["choices"][0]
        self.assertEqual((cut["message"]["content"], cut["finish_reason"]), (text[: text.index(text[3:6])], "stop"))
        self.assertEqual(self.chat(about(PAGE, "Read the page.", max_completion_tokens=2))["choices"][0]["finish_reason"], "length")

    def test_logit_bias(self):
        answer = lambda bias: self.call("POST", "/v1/completions", {"prompt": "<s>Read", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "logprobs": 1, "logit_bias": bias})[1]["choices"][0]
        plain = answer(None)
        first = self.call("POST", "/tokenize", {"prompt": plain["text"], "add_special_tokens": False})[1]["tokens"][0]
        self.assertNotEqual(answer({str(first): -100})["logprobs"]["tokens"][0], plain["logprobs"]["tokens"][0])
        wanted = self.call("POST", "/detokenize", {"tokens": [first] * 3})[1]["prompt"]
        self.assertNotEqual(plain["text"], wanted)
        self.assertEqual(answer({str(first): 100})["text"], wanted)

    def test_logprobs(self):
        answer = self.chat(about(PAGE, logprobs=True, top_logprobs=2))
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), answer["usage"]["completion_tokens"])
        for token in content:
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(token["logprob"], token["top_logprobs"][0]["logprob"])  # greedy
            self.assertEqual(bytes(token["bytes"]).decode(errors="replace"), token["token"])

    def test_progress_of_a_prompt(self):
        body = about(PAGE, return_progress=True, cache_salt=f"progress {time.monotonic()}")
        events = self.events(body)
        progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        self.assertEqual({tuple(p) for p in progress}, {("total", "cache", "processed", "time_ms")})  # llama.cpp's
        self.assertEqual(progress[-1]["processed"], progress[-1]["total"])
        for key in "processed", "time_ms":
            self.assertEqual(sorted(p[key] for p in progress), [p[key] for p in progress])
        told = [e["vlcache_progress"] for e in events if "prompt_progress" in e]
        self.assertEqual(sorted(t["share"] for t in told), [t["share"] for t in told])
        self.assertEqual([t["share"] for t in told if t["share"] == 1], [1])
        self.assertEqual(told[-1], {"share": 1, "seconds_left": 0})
        first = next(i for i, e in enumerate(events) if "prompt_progress" not in e)
        self.assertTrue(all("prompt_progress" not in e for e in events[first:]))  # nothing after the first word
        self.assertTrue(all("prompt_progress" not in e and "vlcache_progress" not in e for e in self.events(about(PAGE))))
        words = lambda events: "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
        self.assertEqual(words(events), words(self.events(about(PAGE, cache_salt="told nothing"))))
        again = [e["prompt_progress"] for e in self.events(body) if "prompt_progress" in e]
        self.assertGreater(again[0]["cache"], 0)
        self.assertEqual(again[-1]["processed"], progress[-1]["total"])

    def test_logprobs_in_streams(self):
        body = about(PAGE, logprobs=True, top_logprobs=2)
        whole = self.chat(body)["choices"][0]["logprobs"]["content"]
        chunks = [c for e in self.events(body) for c in e["choices"]]
        self.assertEqual([t for c in chunks if c["logprobs"] for t in c["logprobs"]["content"]], whole)
        for c in chunks:  # what a chunk tells of tokens is what its text is made of
            if c["delta"].get("content") and c["finish_reason"] is None:
                self.assertEqual("".join(t["token"] for t in c["logprobs"]["content"]).strip(), c["delta"]["content"].strip())
        self.assertTrue(all(c["logprobs"] is None for e in self.events(about(PAGE)) for c in e["choices"]))

    def test_logprobs_of_responses(self):
        whole = self.chat({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2})
        whole = whole["choices"][0]["logprobs"]["content"]
        body = {"input": "Hello", "max_output_tokens": 6, "temperature": 0, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
        status, answer = self.call("POST", "/v1/responses", body)
        self.assertEqual((status, answer["output"][0]["content"][0]["logprobs"]), (200, whole))
        events = self.events(body, "/v1/responses")
        told = [t for e in events if e["type"] == "response.output_text.delta" for t in e["logprobs"]]
        self.assertEqual(told, whole[: len(told)])
        self.assertGreater(len(told), 0)
        self.assertEqual(next(e for e in events if e["type"] == "response.output_text.done")["logprobs"], whole)
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["logprobs"], whole)
        del body["include"], body["top_logprobs"]
        self.assertTrue(all(not e.get("logprobs") for e in self.events(body, "/v1/responses")))

    def test_images_by_name(self):
        named = lambda part, name="page 1": {**part, "uuid": name}
        ask = lambda part, **more: {"messages": [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}], "max_tokens": 24, "temperature": 0, **more}
        alone = {"type": "image_url", "image_url": None}
        status, gone = self.call("POST", "/v1/chat/completions", ask(named(alone, "never")))
        self.assertEqual((status, gone["error"]["param"]), (404, "messages[0].content[0].uuid"))
        self.assertIn("send the image", gone["error"]["message"])
        expected = self.chat(about(PAGE))["choices"]
        self.assertEqual(self.chat(ask(named(image_part(PAGE))))["choices"], expected)
        self.assertEqual(self.chat(ask(named(alone)))["choices"], expected)
        self.assertEqual(self.chat(ask({"type": "image_url", "uuid": "page 1"}))["choices"], expected)
        self.assertGreaterEqual(self.state()["named_images"]["images"], 1)
        other = image_part(MODEL / "demo/table.png")
        status, taken = self.call("POST", "/v1/chat/completions", ask(named(other)))
        self.assertEqual((status, taken["error"]["param"]), (400, "messages[0].content[0].uuid"))
        self.assertEqual(self.chat(ask(named(alone)))["choices"], expected)
        self.assertEqual(self.call("POST", "/v1/chat/completions", ask(named(alone), cache_salt="mine"))[0], 404)
        self.assertEqual(self.call("POST", "/v1/chat/completions", ask(named(alone, "x" * 300)))[0], 400)
        message = {"max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "page 1"}}, {"type": "text", "text": QUESTION}]}]}
        status, answer = self.call("POST", "/v1/messages", message)
        self.assertEqual((status, answer["content"][0]["text"]), (200, expected[0]["message"]["content"]))
        message["messages"][0]["content"][0]["source"]["file_id"] = "never"
        status, gone = self.call("POST", "/v1/messages", message)
        self.assertEqual((status, gone["error"]["type"]), (404, "not_found_error"))
        response = {"max_output_tokens": 24, "temperature": 0, "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "page 1"}, {"type": "input_text", "text": QUESTION}]}]}
        status, answer = self.call("POST", "/v1/responses", response)
        self.assertEqual((status, answer["output"][0]["content"][0]["text"]), (200, expected[0]["message"]["content"]))

    def test_uploads_beside_one_another(self):
        whole = form(PAGE.read_bytes())
        with socket.create_connection(("127.0.0.1", self.port)) as leaving:  # in the middle of its upload
            leaving.sendall(f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: {FORM['content-type']}\r\ncontent-length: {len(whole)}\r\n\r\n".encode() + whole[:1000])
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            work = [clients.submit(self.call, *request) for request in [("POST", "/v1/files", whole, FORM), ("GET", "/v1/files")] * 4]
            replies = [one.result() for one in work]
        self.assertEqual({status for status, _ in replies}, {200})
        ids = [reply["id"] for _, reply in replies[::2]]
        self.assertEqual(sorted(file["id"] for file in self.call("GET", "/v1/files")[1]["data"]), sorted(ids))
        metrics = self.call("GET", "/metrics")[1].decode()
        value = lambda name: float(re.search(rf"^vlcache:{name}{{[^}}]*}} (.*)", metrics, re.M).group(1))
        self.assertEqual(value("uploads"), 4)
        self.assertLess(value("upload_bytes"), 2 * PAGE.stat().st_size + 4 * 1024)  # stored once
        expected = self.chat(about(PAGE))
        part = {"type": "file", "file": {"file_id": ids[0]}}
        answer = self.chat({**about(PAGE), "messages": [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]})
        self.assertEqual(answer["choices"], expected["choices"])
        self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 256)  # the same image to the caches
        for n in (200, len(whole) - 4):  # cut in a header, and before its last boundary
            status, cut = self.call("POST", "/v1/files", whole[:n], FORM)
            self.assertEqual((status, cut["error"]["type"]), (400, "invalid_request_error"))
            self.assertIn("was the upload cut off?", cut["error"]["message"])
        for id in ids:
            self.assertEqual(self.call("DELETE", f"/v1/files/{id}"), (200, {"id": id, "object": "file", "deleted": True}))
        status, gone = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
        self.assertEqual((status, gone["error"]["param"]), (404, "messages[0].content[0].file.file_id"))
        self.assertIn("upload it again", gone["error"]["message"])

    def test_the_detail_of_an_image(self):
        with_detail = lambda detail: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {**image_part(PAGE)["image_url"], "detail": detail}}, {"type": "text", "text": QUESTION}]}], "max_tokens": 24, "temperature": 0}
        expected = self.chat(about(PAGE))
        for same in (with_detail("low"), with_detail("high"), about(PAGE, max_image_tokens=256), about(PAGE, min_image_tokens=256, mm_processor_kwargs={})):
            self.assertEqual(self.chat(same)["choices"], expected["choices"])  # tinydoc knows one way
        for wrong, param in ((with_detail("tiny"), "messages[0].content[0].image_url.detail"), (about(PAGE, max_image_tokens=255), "messages[0].content[0].image_url"), (about(PAGE, min_image_tokens=257), "messages[0].content[0].image_url"), (about(PAGE, max_image_tokens=0), "max_image_tokens"), (about(PAGE, min_image_tokens=9, max_image_tokens=8), "min_image_tokens"), (about(PAGE, mm_processor_kwargs=[]), "mm_processor_kwargs"), (about(PAGE, mm_processor_kwargs={"crop_size": 9}), "mm_processor_kwargs")):
            status, answer = self.call("POST", "/v1/chat/completions", wrong)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)

    def test_policies_and_reuse_of_a_request(self):
        answer = self.chat(about(PAGE, vlcache={"kv": "snapkv", "kv_budget": 0.2, "reuse": "off"}))
        self.assertIn("snapkv", answer["vlcache"]["kv"]["mode"])
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.chat(about(PAGE))
        self.assertEqual(self.chat(about(PAGE, cache_prompt=False))["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreater(self.chat(about(PAGE, cache_prompt=True))["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_a_codec_of_a_request(self):
        prompt = "Which of these is the total? " * 40
        def ask(codec=None):
            more = {} if codec is None else {"kv_codec": codec}
            answer = self.chat({"messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "temperature": 0, "vlcache": {"explain": True, **more}})
            return answer["vlcache"]["kv"], answer["vlcache"]["cache"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        plain, _, _ = ask()
        kv, cache, cached = ask("int8")
        self.assertEqual((plain["codec"], plain["coded_bytes_read"], kv["codec"]), ("f32", 0, "int8"))
        self.assertGreater(kv["coded_bytes_read"], 0)
        self.assertLess(kv["bytes"], plain["bytes"])
        self.assertIn("more tokens are in the cache, but computed with KV codec f32", cache["prefix_reason"])
        for codec in ("q8_0", None, "auto"):
            kv, cache, again = ask(codec)
            self.assertGreater(again, cached + 700, codec)
            self.assertEqual(kv["codec"], "int8" if codec == "q8_0" else "f32")
        metrics = self.call("GET", "/metrics")[1].decode()
        for codec in ("f32", "int8"):
            self.assertRegex(metrics, 'vlcache:kv_codec_bytes{[^}]*codec="%s"} [1-9]' % codec)
        messages = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "temperature": 0}
        for path, body in (("/v1/completions", {"prompt": prompt, "max_tokens": 1}), ("/v1/responses", {"input": prompt, "max_output_tokens": 1}), ("/v1/messages", messages),
                           ("/v1/chat/completions", {**messages, "options": {"seed": 3}})):  # Ollama's
            for codec in ("int8", "f32"):
                answer = self.call("POST", path, {**body, "vlcache": {"kv_codec": codec}})[1]
                self.assertEqual((answer["vlcache"]["kv"]["codec"], answer["vlcache"]["kv"]["coded_bytes_read"] > 0), (codec, codec == "int8"), path)

    def test_four_answers_under_the_codec_of_a_request(self):
        ask = {"messages": [{"role": "user", "content": "Which of these is the total? " * 40}], "max_tokens": 6, "temperature": 3, "ignore_eos": True, "vlcache": {"kv_codec": "int8"}}
        four = self.chat({**ask, "n": 4, "seed": 5})
        self.assertEqual((four["vlcache"]["kv"]["codec"], four["vlcache"]["kv"]["coded_bytes_read"] > 0), ("int8", True))
        alone = [self.chat({**ask, "seed": 5 + i})["choices"][0]["message"]["content"] for i in range(4)]
        self.assertEqual([choice["message"]["content"] for choice in four["choices"]], alone)
        self.assertGreater(len(set(alone)), 1)

    def test_the_kept_tokens_of_an_image(self):
        ask = lambda **how: self.chat(about(PAGE, vlcache={"explain": True, **how}))["vlcache"]["kv"]
        whole = ask(kv="full")["images"]
        self.assertEqual([(i["width"], i["height"]) for i in whole], [(224, 224)])
        self.assertEqual(whole[0]["kept"], [1.0] * 256)
        self.assertEqual(whole[0]["rects"][:2] + whole[0]["rects"][-1:], [[0, 0, 14, 14], [14, 0, 28, 14], [210, 210, 224, 224]])
        part = ask(kv="snapkv", kv_budget=0.2)["images"][0]["kept"]
        self.assertTrue(0.1 < sum(part) / len(part) < 0.25, sum(part) / len(part))
        self.assertGreater(len(set(part)), 2)  # heads differ
        self.assertNotIn("images", self.chat(about(PAGE))["vlcache"]["kv"])

    def test_the_page_and_its_cache(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        for method, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/page/app.js")):
            c.request(method, path)
            r = c.getresponse()
            body = r.read()
            self.assertEqual((r.status, bool(body)), (200, method == "GET"))
            self.assertIn("default-src 'self'", r.getheader("content-security-policy"))
        c.request("GET", "/page/app.js", headers={"if-none-match": r.getheader("etag")})
        r = c.getresponse()  # over the same connection: a reply without a body ends where it should
        self.assertEqual((r.status, r.read(), r.getheader("content-length")), (304, b"", None))
        c.request("GET", "/health")
        self.assertEqual(c.getresponse().read(), b'{"status":"ok"}')
        c.close()
        self.assertEqual(self.call("GET", "/page/nothing.js")[0], 404)

    def test_memory_of_kv(self):
        self.chat(about(PAGE))
        kv = self.state()["kv"]
        self.assertTrue(0 < kv["bytes"] < kv["max_bytes"], kv)

    def test_fields_that_clients_send_are_accepted(self):
        plain = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "temperature": 0}
        expected = self.chat(plain)["choices"][0]["message"]["content"]
        for habit in (
            {**plain, "model": "gpt-4o", "user": "x", "store": False, "metadata": None, "tools": [], "logit_bias": [], "parallel_tool_calls": True},
            {**plain, "messages": [{"role": "system", "content": ""}, *plain["messages"]]},
            {**plain, "messages": [{"role": "user", "name": "me", "content": "Hello"}]},
            {**plain, "stop": None, "seed": None, "stream": None, "response_format": {"type": "text"}, "top_k": -1, "n": 1.0},
        ):
            self.assertEqual(self.chat(habit)["choices"][0]["message"]["content"], expected)


class Errors(Server):
    FLAGS = ("--max-body", "1", "--max-images", "2")

    def test_errors_name_the_parameter(self):
        ask = lambda **more: {**about(PAGE), **more}
        content = lambda *parts: {"messages": [{"role": "user", "content": list(parts)}]}
        url = lambda u: content({"type": "image_url", "image_url": {"url": u}})
        for body, param, says in (
            ("{", None, "request's body"), ("[]", None, "JSON object"), ({}, "messages", "at least one"), (ask(messages=[]), "messages", "at least one"),
            (ask(temperature="hot"), "temperature", "number >= 0"), (ask(n=0), "n", "integer from 1"), (ask(n=1.5), "n", "integer"),
            (ask(top_logprobs=3), "top_logprobs", "logprobs"), (ask(stop=[1]), "stop", "strings"), (ask(stream="yes"), "stream", "true or false"),
            (ask(functions=[{"name": "f"}]), "functions", "not supported"), (ask(logit_bias=[1]), "logit_bias", "an object"),
            (ask(logit_bias={"-1": 2}), "logit_bias", "token ids"), (ask(logit_bias={"1x": 2}), "logit_bias", "token ids"), (ask(logit_bias={"99999999999": 2}), "logit_bias", "token ids"),
            (ask(logit_bias={"1": 101}), "logit_bias.1", "from -100 to 100"), (ask(logit_bias={"1": "2"}), "logit_bias.1", "from -100 to 100"), (ask(logit_bias={"9999999": 2}), "logit_bias", "below"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"), ({"messages": ["x"]}, "messages[0]", "object"),
            (content({"type": "input_audio"}), "messages[0].content[0]", "input_audio"), (content(*[image_part(PAGE)] * 3), "messages", "at most 2 images"),
            (url("http://127.0.0.1/x.png"), "messages[0].content[0].image_url", "data URI"), (url("file:///etc/passwd"), "messages[0].content[0].image_url", "data URI"),
            (url("data:text/html;base64,AAAA"), "messages[0].content[0].image_url", "of an image"), (url("data:image/png;base64,@@@@"), "messages[0].content[0].image_url", "base64"),
            (url("data:image/png;base64,AAAA"), "messages[0].content[0].image_url", ""), (url("data:image/png,x"), "messages[0].content[0].image_url", "in base64"),
            (ask(vlcache={"kv": "snapvk"}), None, "snapkv"), (ask(vlcache={"reuse": "vlcash"}), None, "vlcache"), (ask(vlcache={"kv_budget": []}), "vlcache.kv_budget", "number"),
            (ask(vlcache={"kv_codec": "f16"}), "kv_codec", "the nearest is bf16; allowed are"), (ask(vlcache={"kv_codec": 8}), "vlcache.kv_codec", "a string"), (ask(vlcache={"kv_codec": "int8", "kv": "static"}), None, "static reserves slots"),
        ):
            with self.subTest(says):
                status, answer = self.call("POST", "/v1/chat/completions", body)
                self.assertEqual(status, 400, answer)
                self.assertIn(says, answer["error"]["message"])
                self.assertEqual(answer["error"]["type"], "invalid_request_error")
                self.assertEqual(answer["error"]["param"], param, answer)

    def test_prompts_beyond_the_context(self):
        status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a b c d " * 20000}]})
        self.assertEqual(status, 400)
        self.assertIn("the model's context is", answer["error"]["message"])

    def test_paths_and_methods(self):
        self.assertEqual(self.call("GET", "/v1/chat/completions")[0], 405)
        self.assertEqual(self.call("GET", "/v1/chat")[0], 404)
        self.assertEqual(self.call("GET", "/v1/models/../../etc/passwd")[0], 404)
        self.assertEqual(self.call("GET", "/health"), (200, {"status": "ok"}))
        models = self.call("GET", "/v1/models")[1]
        self.assertEqual([m["id"] for m in models["data"]], ["tinydoc"])
        for path in ("/models", "/models/tinydoc"):  # a base URL without /v1
            self.assertEqual(self.call("GET", path), self.call("GET", "/v1" + path))
        self.assertEqual(self.call("GET", "/chat/completions")[0], 405)
        status, answer = self.call("POST", "/v1/v1/chat/completions", {})
        self.assertEqual(status, 404)
        self.assertIn("this server has /v1/chat/completions", answer["error"]["message"])

    def test_half_a_surrogate_pair(self):
        for path, body in (("/chat/completions", r'{"max_tokens": 1, "user": "\udc00", "messages": [{"role": "user", "content": "a \ud83d b \ud83d\ude00"}]}'),
                           ("/messages", r'{"max_tokens": 1, "messages": [{"role": "user", "content": "a \ud83d b"}]}'), ("/tokenize", r'{"prompt": "\ud83d"}')):
            self.assertEqual(self.call("POST", path, body)[0], 200)

    def raw(self, data, wait=5):
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as s:
            s.sendall(data)
            reply = b""
            while piece := s.recv(65536):
                reply += piece
            return reply

    def test_invalid_http(self):
        self.assertIn(b" 400 ", self.raw(b"\x16\x03\x01 hello\r\n\r\n").split(b"\r\n")[0])
        self.assertIn(b" 431 ", self.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000).split(b"\r\n")[0])
        self.assertIn(b" 413 ", self.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n").split(b"\r\n")[0])
        self.assertEqual(self.raw(b"GET /health HTTP/1.0\r\n\r\n").split(b"\r\n\r\n")[1], b'{"status":"ok"}')
        body = json.dumps(about(PAGE)).encode()
        reply = self.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body, wait=60)
        self.assertTrue(reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), reply[:80])

    def test_streams_of_http_1_0_end_with_the_connection(self):
        for path, (body, end) in ENDPOINTS.items():
            data = json.dumps({**body, "stream": True}).encode()
            for more in (b"", b"connection: keep-alive\r\n", b"") * 3:
                head, _, text = self.raw(b"POST %s HTTP/1.0\r\n%scontent-length: %d\r\n\r\n" % (path.encode(), more, len(data)) + data).decode().partition("\r\n\r\n")
                self.assertTrue(text.endswith(end), text)
                for header in ("HTTP/1.1 200 OK", "content-type: text/event-stream", "connection: close", "x-accel-buffering: no", "cache-control: no-cache"):
                    self.assertIn(header, head.split("\r\n"))

    def test_the_server_as_a_whole_and_empty_lines(self):
        head = self.raw(b"\r\nOPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 204 No Content\r\n"), head)
        self.assertIn(b"\r\nallow: OPTIONS, HEAD, GET, POST", head)

    def test_clients_that_end_their_side(self):
        ask = lambda data: self.half_closed(data.replace(b"\n", b"\r\n"))
        self.assertTrue(ask(b"GET /health HTTP/1.1\nhost: localhost\n\n").endswith(b'{"status":"ok"}'))
        self.assertTrue(ask(b"GET /v1/models HTTP/1.0\n\n").startswith(b"HTTP/1.1 200 OK"))
        self.assertTrue(ask(b"GET /none HTTP/1.0\n\n").startswith(b"HTTP/1.1 404 "))
        body = json.dumps({**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 100000}).encode()
        self.assertEqual(self.half_closed(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body), b"")
        self.wait_until_idle()

    def half_closed(self, data):
        """The reply to a client that closes its sending side, as `nc -N` does."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: s.recv(65536), b""))

    def test_requests_of_one_connection(self):
        two = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        self.assertEqual(self.raw(two).count(b"HTTP/1.1 200 OK"), 2)

    def test_client_disconnect_ends_its_request(self):
        body = json.dumps(about(PAGE, "Read the page.", ignore_eos=True, max_tokens=100000, stream=True)).encode()
        for stream in (True, False):
            body = json.dumps({**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 100000, "stream": stream}).encode()
            s = socket.create_connection(("127.0.0.1", self.port))
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.3)
            s.close()
            self.wait_until_idle()

    def test_many_idle_connections(self):
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(500)]
        self.assertEqual(self.call("GET", "/health")[0], 200)
        for s in idle:
            s.close()


class FullServer(Server):
    FLAGS = ("--parallel", "1", "--max-waiting", "1")

    def test_a_full_queue(self):
        slow = {**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 1500}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: self.call("POST", "/v1/chat/completions", slow), range(8)))
        statuses = sorted(status for status, _ in answers)
        self.assertEqual(set(statuses), {200, 429})
        self.assertGreaterEqual(statuses.count(200), 2)
        self.assertTrue(all(a["error"]["type"] == "rate_limit_error" for status, a in answers if status == 429))

    @unittest.skipUnless(NGINX, "nginx is missing (tools/install_deps.sh test)")
    def test_through_nginx(self):
        nginx = Nginx(self.port)
        self.addCleanup(nginx.end)
        n = int(os.environ.get("VLCACHE_TEST_PROXIED", 300))
        whole = {path: self.text_of(self.call("POST", path, {**body, "temperature": 0})[1]) for path, (body, _) in ENDPOINTS.items()}
        for i in range(n):
            path = list(ENDPOINTS)[i % 4]
            body, end = ENDPOINTS[path]
            stream = i % 8 < 6
            with self.subTest(i):
                c = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=20)
                c.request("POST", path, json.dumps({**body, "temperature": 0, "stream": stream}))
                r = c.getresponse()
                text = r.read().decode()  # raises IncompleteRead where it is cut
                c.close()
                self.assertEqual(r.status, 200, text)
                if stream:
                    self.assertTrue(text.endswith(end), text)
                    events = [json.loads(line) for line in data_of(text.split("\n")) if line != "[DONE]"]
                    self.assertEqual("".join(map(self.piece_of, events)), whole[path])
                else:
                    self.assertEqual(self.text_of(json.loads(text)), whole[path])
        self.assertNotIn("timed out", nginx.errors())

    @unittest.skipUnless(NGINX, "nginx is missing (tools/install_deps.sh test)")
    def test_events_pass_nginx_one_at_a_time(self):
        nginx = Nginx(self.port)
        self.addCleanup(nginx.end)
        for path, first in (("/v1/responses", "response.created"), ("/v1/messages", "message_start")):
            # As long as another request runs, this one waits, and only its first event has been written. A machine that
            # was busy for seconds may notice too late.
            self.assertTrue(any(self.passes_while_it_waits(nginx, path, first) for _ in range(3)), path)

    def passes_while_it_waits(self, nginx, path, first):
        busy = self.connect()
        busy.request("POST", "/v1/chat/completions", json.dumps({**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 100000, "stream": True}))
        running = busy.getresponse()
        running.readline()
        body, end = ENDPOINTS[path]
        c = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=60)
        c.request("POST", path, json.dumps({**body, "stream": True}))
        r = c.getresponse()
        event = r.readline() + r.readline() + r.readline()
        self.assertIn(first, event.decode())
        waits = self.state()["requests"] == {"running": 1, "waiting": 1}
        running.close()
        busy.close()
        self.assertTrue(r.read().decode().endswith(end))
        c.close()
        self.wait_until_idle()
        return waits

    @staticmethod
    def text_of(answer):
        """The text of a whole answer of any endpoint."""
        if "choices" in answer:
            choice = answer["choices"][0]
            return choice["text"] if "text" in choice else choice["message"]["content"]
        return (answer.get("output") or [answer])[0]["content"][0]["text"]

    @staticmethod
    def piece_of(event):
        """The text that an event of any endpoint adds."""
        if "choices" in event:
            return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in event["choices"])
        delta = event.get("delta", "") if event["type"] in ("content_block_delta", "response.output_text.delta") else ""
        return delta if isinstance(delta, str) else delta.get("text", "")

    def test_shutdown_completes_running_requests(self):
        other = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0"])
        self.addCleanup(other.kill)
        c = other.connect()
        c.request("POST", "/v1/chat/completions", json.dumps({**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 300}))
        time.sleep(0.2)
        other.process.send_signal(signal.SIGTERM)
        self.assertEqual(json.loads(c.getresponse().read())["usage"]["completion_tokens"], 300)
        self.assertEqual(other.process.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
