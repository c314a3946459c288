"""Running `vlcache serve`: ids, log, metrics, TLS, small routes, images of other places, limits."""
import contextlib
import http.client
import http.server
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest
from server import ServerProcess, data_of
from test_server import QUESTION, Server, about


def hello(**more):
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0, **more}


class Operations(Server):
    @classmethod
    def prepare(cls, folder):
        cls.log = folder / "access.log"
        cls.FLAGS = ("--access-log", str(cls.log))

    def logged(self, id, path=None):
        for _ in range(100):
            for line in (path or self.log).read_text().splitlines():
                if json.loads(line)["id"] == id:
                    return json.loads(line), line
            time.sleep(0.05)
        self.fail(f"{id} is not in the log")

    def test_ids_and_log(self):
        for stream in (False, True):
            r = self.answer("POST", "/v1/chat/completions", about(PAGE, stream=stream), {"x-request-id": f"mine-{stream}"})
            self.assertEqual(r.getheader("x-request-id"), f"mine-{stream}")
            entry, line = self.logged(f"mine-{stream}")
            self.assertEqual((entry["method"], entry["path"], entry["status"], entry["peer"]), ("POST", "/v1/chat/completions", 200, "127.0.0.1"))
            self.assertGreater(entry["prompt_tokens"], 256)
            self.assertGreater(entry["completion_tokens"], 0)
            self.assertLess(0, entry["ms"])
            self.assertRegex(entry["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertNotIn("TOTAL", line)
        self.answer("POST", "/v1/chat/completions", {"messages": []}, {"x-request-id": "mine-wrong"})
        self.assertIn("at least one", self.logged("mine-wrong")[0]["error"])
        self.assertEqual(entry["cached_tokens"], entry["prompt_tokens"] - 1)
        r = self.answer("GET", "/v1/nothing?secret=x", headers={"x-request-id": "bad id"})
        entry, line = self.logged(r.getheader("x-request-id"))
        self.assertEqual((entry["status"], entry["path"]), (404, "/v1/nothing"))
        self.assertNotIn("secret", line)

    def test_a_disconnected_client_is_logged(self):
        c = self.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(hello(max_tokens=1500, ignore_eos=True)), {"x-request-id": "leaves"})
        time.sleep(0.3)
        c.close()
        self.assertEqual((self.logged("leaves")[0]["status"], self.logged("leaves")[0]["gone"]), (499, True))

    def test_the_log_is_rotated(self):
        old = self.log.with_suffix(".1")
        self.answer("GET", "/health", headers={"x-request-id": "before"})
        self.logged("before")
        self.log.rename(old)
        self.process.send_signal(signal.SIGHUP)
        for _ in range(100):
            if self.log.exists():
                break
            time.sleep(0.05)
        self.answer("GET", "/health", headers={"x-request-id": "behind"})
        self.logged("behind")
        self.logged("before", old)

    def metrics(self):
        status, text = self.call("GET", "/metrics")
        self.assertEqual(status, 200)
        values = {}
        for line in text.decode().splitlines():
            if line.startswith("#"):
                self.assertRegex(line, r"^# (HELP|TYPE) [a-z0-9_:]+ .+$")
                continue
            name, value = re.fullmatch(r'((?:vllm|vlcache):\w+\{model_name="tinydoc",engine="0".*\}) ([-+.e\d]+|\+Inf)', line).groups()
            self.assertNotIn(name, values)
            values[name.replace('model_name="tinydoc",engine="0"', "")] = float(value)
        return values

    def test_metrics(self):
        before = self.metrics()
        usages = [self.chat(about(PAGE, "Which metric?"))["usage"] for _ in range(2)]
        after = self.metrics()
        grown = lambda name: after[name] - before[name]
        self.assertEqual(grown("vllm:prompt_tokens_total{}"), sum(u["prompt_tokens"] for u in usages))
        self.assertEqual(grown("vllm:generation_tokens_total{}"), sum(u["completion_tokens"] for u in usages))
        self.assertEqual(grown("vllm:prefix_cache_queries_total{}"), sum(u["prompt_tokens"] for u in usages))
        self.assertGreaterEqual(grown("vllm:prefix_cache_hits_total{}"), usages[1]["prompt_tokens"] - 1)
        for histogram in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prompt_tokens"):
            self.assertEqual(grown(f"vllm:{histogram}_count{{}}"), 2, histogram)
        self.assertGreater(grown("vllm:inter_token_latency_seconds_count{}"), 0)
        self.assertEqual(sum(grown(f'vllm:request_success_total{{,finished_reason="{r}"}}') for r in ("stop", "length")), 2)
        self.assertEqual(after["vllm:num_requests_running{}"], 0)
        self.assertGreater(after["vllm:kv_cache_usage_perc{}"], 0)
        self.assertGreater(after['vlcache:cache_hits_total{,cache="prefix"}'], 0)

    def test_the_dashboard_shows_existing_metrics(self):
        dashboard = json.loads((ROOT / "deploy/grafana.json").read_text())
        made = subprocess.run([sys.executable, ROOT / "deploy/make_dashboard.py"], check=True, capture_output=True, text=True).stdout
        self.assertEqual(json.loads(made), dashboard)
        there = {re.sub(r"\{.*", "", name) for name in self.metrics()}
        asked = {name for panel in dashboard["panels"] for target in panel["targets"] for name in re.findall(r"(?:vllm|vlcache):\w+", target["expr"])}
        self.assertEqual({name for name in asked - there if not name.startswith("vlcache:tier_") and not name.startswith("vlcache:requests_refused")}, set())

    def test_warming_up_leaves_no_trace(self):
        other = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0"])
        try:
            c = other.connect()
            self.addCleanup(c.close)

            def get(path):
                c.request("GET", path)
                r = c.getresponse()
                return r.status, json.loads(r.read())

            seen = [get("/health")]
            while seen[-1][0] == 503:
                seen.append(get("/health"))
            self.assertEqual(seen[-1], (200, {"status": "ok"}))
            self.assertTrue(all(answer == (503, {"status": "warming up"}) for answer in seen[:-1]))
            stats = get("/v1/cache/stats")[1]
            for cache in ("prefix", "image_kv", "encoder"):
                self.assertEqual((stats[cache]["hits"], stats[cache]["misses"], stats[cache]["bytes"]), (0, 0, 0), cache)
        finally:
            other.end()

    def test_tokenize_round_trip(self):
        text = "The total is 12.50 €"
        status, answer = self.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        self.assertEqual((status, answer["count"], answer["token_strs"]), (200, len(answer["tokens"]), None))
        self.assertEqual(self.call("POST", "/detokenize", {"tokens": answer["tokens"]}), (200, {"prompt": text}))
        named = self.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True})[1]
        self.assertEqual(len(named["token_strs"]), named["count"])
        chat = self.call("POST", "/tokenize", {"messages": about(PAGE)["messages"]})[1]
        self.assertEqual(chat["count"], self.chat(about(PAGE))["usage"]["prompt_tokens"])
        for path, body, param in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 1}, "prompt"), ("/detokenize", {}, "tokens"),
                                  ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"), ("/detokenize", {"tokens": [10**9]}, "tokens[0]"),
                                  ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens")):
            status, answer = self.call("POST", path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param))

    def test_props(self):
        status, props = self.call("GET", "/props")
        self.assertEqual((status, props["model_alias"], props["total_slots"], props["modalities"]), (200, "tinydoc", 32, {"vision": True, "video": False, "audio": False}))
        self.assertEqual(props["limits"], {"image_pixels": 64_000_000})
        self.assertEqual(props["vlcache"], {"kv": "full", "kv_budget": "", "reuse": "auto"})
        for field, wrong in (("kv", "pointr"), ("kv_budget", "2x"), ("reuse", "exat")):  # the page checks its fields by it
            status, answer = self.call("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "?"}], "vlcache": {field: wrong}})
            self.assertEqual((status, wrong in answer["error"]["message"]), (400, True), answer)
        self.assertEqual(props["default_generation_settings"]["n_ctx"], self.call("POST", "/tokenize", {"prompt": "a"})[1]["max_model_len"])

    def test_wrong_methods(self):
        for path in ("/tokenize", "/detokenize", "/v1/cache/reset", "/v1/completions"):
            self.assertEqual(self.call("GET", path)[0], 405, path)
        for path in ("/metrics", "/props", "/health"):
            self.assertEqual(self.call("POST", path, {})[0], 405, path)
        r = self.answer("HEAD", "/health")
        self.assertEqual((r.status, r.text), (200, b""))


class Completions(Server):
    def complete(self, **body):
        status, answer = self.call("POST", "/v1/completions", {"temperature": 0, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def test_text_and_tokens(self):
        answer = self.complete(prompt="The total is", max_tokens=6, ignore_eos=True)
        self.assertEqual((answer["object"], answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]), ("text_completion", 6, "length"))
        tokens = self.call("POST", "/tokenize", {"prompt": "The total is"})[1]["tokens"]
        self.assertEqual(answer["usage"]["prompt_tokens"], len(tokens))
        again = self.complete(prompt=tokens, max_tokens=6, ignore_eos=True)
        self.assertEqual(again["choices"], answer["choices"])
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], len(tokens) - 1)
        self.assertEqual(self.complete(prompt="The total is", ignore_eos=True)["usage"]["completion_tokens"], 16)

    def test_several_prompts(self):
        prompts = ["The total is", "Dear", "Invoice"]
        alone = [self.complete(prompt=p, max_tokens=4)["choices"][0]["text"] for p in prompts]
        answer = self.complete(prompt=prompts, n=2, max_tokens=4)
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(6)))
        self.assertEqual([c["text"] for c in answer["choices"]], [text for text in alone for _ in range(2)])
        self.assertEqual(answer["usage"]["prompt_tokens"], sum(self.call("POST", "/tokenize", {"prompt": p})[1]["count"] for p in prompts))

    def test_streams(self):
        whole = self.complete(prompt=["The total is", "Dear"], max_tokens=8)
        status, text = self.call("POST", "/v1/completions", {"prompt": ["The total is", "Dear"], "max_tokens": 8, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}})
        lines = list(data_of(text.decode().split("\n")))
        self.assertEqual(lines.pop(), "[DONE]")
        events = [json.loads(line) for line in lines]
        self.assertEqual([e["usage"] for e in events[:-1]], [None] * (len(events) - 1))
        self.assertEqual(events[-1]["usage"], {**whole["usage"], "prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]})
        for choice in whole["choices"]:
            pieces = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
            self.assertEqual("".join(c["text"] for c in pieces), choice["text"])
            self.assertEqual(pieces[-1]["finish_reason"], choice["finish_reason"])

    def test_logprobs(self):
        logprobs = self.complete(prompt="The total is", max_tokens=5, logprobs=2, ignore_eos=True)["choices"][0]["logprobs"]
        self.assertEqual({len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}, {5})
        for i, token in enumerate(logprobs["tokens"]):
            self.assertEqual(logprobs["top_logprobs"][i][token], logprobs["token_logprobs"][i])
            self.assertEqual(logprobs["text_offset"][i], len("".join(logprobs["tokens"][:i])))
        _, text = self.call("POST", "/v1/completions", {"prompt": "The total is", "max_tokens": 5, "logprobs": 2, "ignore_eos": True, "temperature": 0, "stream": True, "return_progress": True})
        events = [json.loads(data) for data in data_of(text.decode().split("\n")) if data != "[DONE]"]
        pieces = [c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]]
        self.assertEqual({key: [x for piece in pieces for x in piece[key]] for key in logprobs}, logprobs)
        self.assertEqual({e["prompt_progress"]["processed"] for e in events if "prompt_progress" in e}, {self.complete(prompt="The total is", max_tokens=1)["usage"]["prompt_tokens"]})

    def test_errors_name_the_parameter(self):
        for body, param in (({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt[0]"), ({"prompt": [1, "a"]}, "prompt[0]"),
                            ({"prompt": ["a"] * 65}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": "a", "suffix": "b"}, "suffix"),
                            ({"prompt": "a", "best_of": 3}, "best_of"), ({"prompt": "a", "logprobs": True}, "logprobs"), ({"prompt": "a", "logprobs": 21}, "logprobs"),
                            ({"prompt": "a", "n": 0}, "n"), ({"prompt": "a", "temperature": "x"}, "temperature")):
            status, answer = self.call("POST", "/v1/completions", body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        self.assertEqual(self.call("POST", "/v1/completions", {"prompt": [10**9]})[0], 400)


@unittest.skipUnless(shutil.which("openssl"), "openssl makes the certificate")
class Tls(Server):
    @classmethod
    def prepare(cls, folder):
        cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-days", "2", "-keyout", key, "-out", cert], check=True, capture_output=True)
        cls.context = ssl.create_default_context(cafile=cert)
        cls.FLAGS = ("--tls-cert", cert, "--tls-key", key)

    @classmethod
    def connect(cls, timeout=120):
        return http.client.HTTPSConnection("127.0.0.1", cls.port, timeout=timeout, context=cls.context)

    def test_answers_and_streams(self):
        whole = self.chat(about(PAGE))["choices"][0]["message"]["content"]
        events = self.events(about(PAGE))
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), whole)
        c = self.connect()
        for _ in range(3):  # on one connection
            c.request("POST", "/v1/chat/completions", json.dumps(about(PAGE)))
            self.assertEqual(json.loads(c.getresponse().read())["choices"][0]["message"]["content"], whole)
        c.close()

    def test_client_disconnect_ends_its_request(self):
        for stream in (True, False):
            c = self.connect()
            c.request("POST", "/v1/chat/completions", json.dumps(hello(max_tokens=100000, ignore_eos=True, stream=stream)))
            time.sleep(0.3)
            with contextlib.suppress(ssl.SSLError):  # a goodbye that nobody answers
                c.sock.unwrap() if stream else c.sock.shutdown(socket.SHUT_RDWR)
            c.sock.close()
            c.close()
            self.wait_until_idle()

    def test_streams_of_http_1_0_end_with_the_connection(self):
        body = json.dumps(hello(max_tokens=2, stream=True)).encode()
        for _ in range(6):
            with self.context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=20), server_hostname="127.0.0.1") as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                reply = b"".join(iter(lambda: s.recv(65536), b""))
            self.assertTrue(reply.endswith(b"data: [DONE]\n\n"), reply)

    def test_many_requests_at_once_on_a_connection(self):
        with self.context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=60), server_hostname="127.0.0.1") as s:
            body = json.dumps(hello()).encode()
            ask = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            s.sendall(ask + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" + ask + b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            reply = b""
            while piece := s.recv(65536):
                reply += piece
        self.assertEqual(reply.count(b"HTTP/1.1 200 OK"), 4)
        self.assertEqual(reply.count(b"chat.completion"), 2)

    def test_too_large(self):
        c = self.connect()
        c.request("POST", "/v1/chat/completions", b"x", {"content-length": str(10**10)})
        self.assertEqual(c.getresponse().status, 413)
        c.close()

    def test_connections_without_tls(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with self.assertRaises((http.client.HTTPException, OSError)):
            c.request("GET", "/health")
            c.getresponse()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with self.assertWarns(DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        c = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=old)
        with self.assertRaises(OSError):
            c.request("GET", "/health")
        c.close()
        self.assertEqual(self.call("GET", "/health")[0], 200)

    def test_invalid_certificates(self):
        cert = self.FLAGS[1]
        self.fails("serve", "-m", MODEL, "--tls-cert", cert, "--tls-key", cert, says=["--tls-key", "cannot be used"])
        self.fails("serve", "-m", MODEL, "--tls-cert", self.folder / "none", "--tls-key", cert, says=["--tls-cert", "none"])


class Images(Server):
    """Images of a web server and a folder that are allowed."""

    @classmethod
    def prepare(cls, folder):
        (folder / "open").mkdir()
        shutil.copy(PAGE, folder / "open/page.png")
        shutil.copy(PAGE, folder / "secret.png")
        (folder / "open/link.png").symlink_to(folder / "secret.png")

        class Handler(http.server.SimpleHTTPRequestHandler):
            asked = []

            def do_GET(self):
                Handler.asked.append(self.path)
                if self.path.startswith("/open/away"):
                    self.send_response(302)
                    self.send_header("location", "/open/page.png")
                    self.end_headers()
                else:
                    super().do_GET()

            def log_message(self, *args):
                pass

        cls.web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Handler(*a, directory=str(folder)))
        cls.asked = Handler.asked
        threading.Thread(target=cls.web.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.web.server_close)
        cls.addClassCleanup(cls.web.shutdown)
        cls.url = f"http://127.0.0.1:{cls.web.server_port}"
        cls.FLAGS = ("--image-url-prefix", cls.url + "/open/", "--image-path-prefix", str(folder / "open"))
        cls.folder_url = f"file://{folder}"

    def ask(self, url):
        return self.call("POST", "/v1/chat/completions", {**about(PAGE), "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]}]})

    def test_urls_give_the_same_images(self):
        expected = self.chat(about(PAGE))["choices"]
        for url in (self.url + "/open/page.png", self.folder_url + "/open/page.png"):
            status, answer = self.ask(url)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"], expected)
            self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 256)

    def test_ssrf(self):
        port = self.web.server_port
        before = [path for path in self.asked if not path.startswith("/open/")]
        for url in (self.url + "/secret.png", self.url + "/open/../secret.png", self.url + "/open/%2e%2e/secret.png", f"http://localhost:{port}/open/page.png",
                    f"http://2130706433:{port}/open/page.png", f"http://0x7f000001:{port}/open/page.png", f"http://0177.0.0.1:{port}/open/page.png",
                    f"http://127.1:{port}/open/page.png", f"http://[::1]:{port}/open/page.png", f"http://[::ffff:127.0.0.1]:{port}/open/page.png",
                    f"http://127.0.0.1:{port}@evil.example/open/page.png", "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:22/", "ftp://127.0.0.1/open/page.png",
                    "file:///etc/passwd", self.folder_url + "/secret.png", self.folder_url + "/open/../secret.png", self.folder_url + "/open/%2e%2e/secret.png",
                    self.folder_url + "/open/link.png", self.folder_url + "/open", "/etc/passwd", "../../etc/passwd"):
            status, answer = self.ask(url)
            self.assertEqual((status, answer["error"]["param"]), (400, "messages[0].content[0].image_url"), url)
            self.assertIn("that this server reads", answer["error"]["message"])
        self.assertEqual([path for path in self.asked if not path.startswith("/open/")], before)
        asked = len(self.asked)
        status, answer = self.ask(self.url + "/open/away.png")
        self.assertEqual(status, 400)
        self.assertIn("redirects are not followed", answer["error"]["message"])
        self.assertEqual(len(self.asked), asked + 1)
        self.assertIn("404", self.ask(self.url + "/open/none.png")[1]["error"]["message"])


class PromptLimit(Server):
    FLAGS = ("--max-prompt-tokens", "100")

    def test_prompts_beyond_the_limit(self):
        self.chat(hello())
        for path, body in (("/v1/chat/completions", about(PAGE)), ("/v1/completions", {"prompt": [5] * 101})):
            status, answer = self.call("POST", path, body)
            self.assertEqual(status, 400, answer)
            self.assertIn("this server takes at most 100 (--max-prompt-tokens)", answer["error"]["message"])


class Limits(Server):
    FLAGS = ("--request-timeout", "1", "--parallel", "1", "--max-megapixels", "1")

    def test_timeouts(self):
        slow = hello(max_tokens=100000, ignore_eos=True, messages=[{"role": "user", "content": "a " * 1500}])
        results = [None, None]

        def ask(i):
            results[i] = self.call("POST", "/v1/chat/completions", {**slow, "stream": i == 1})

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        begin = time.monotonic()
        for t in threads:
            t.start()
            time.sleep(0.1)
        for t in threads:
            t.join()
        self.assertLess(time.monotonic() - begin, 30)
        status, answer = results[0]
        if status != 200:  # a machine that computes all of the context in a second has answered
            self.assertEqual((status, answer["error"]["type"]), (504, "server_error"))
            self.assertIn("--request-timeout", answer["error"]["message"])
        self.assertTrue(results[1][1].endswith(b"data: [DONE]\n\n"))
        self.assertEqual(self.call("POST", "/v1/chat/completions", hello())[0], 200)
        for path, body in (("/v1/chat/completions", slow), ("/v1/completions", {"prompt": "a " * 1500, "max_tokens": 100000, "ignore_eos": True})):
            status, answer = self.call("POST", path, {**body, "vlcache": {"timeout": 0.001}})
            self.assertEqual((status, answer["error"]["type"]), (504, "server_error"))
            self.assertIn("1 ms (vlcache.timeout)", answer["error"]["message"])
            self.assertEqual(self.call("POST", path, {**body, "vlcache": {"timeout": -1}})[0], 400)


class Lifecycle(ProgramTest):
    """What load balancers, container managers and Prometheus ask."""
    def get(self, port, path, **headers):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.addCleanup(c.close)
        c.request("GET", path, headers=headers)
        r = c.getresponse()
        return r.status, r.read().decode()

    def test_probes_names_and_a_port_for_operators(self):
        keys = self.write("keys", "a-key-0123456789abcdef ops admin\n")
        keys.chmod(0o600)
        server = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--host", "0.0.0.0", "--api-keys", keys, "--ops-port", "0", "--drain-delay", "2"])
        self.addCleanup(server.kill)
        server.ready()
        ops = next(int(line.split("http://0.0.0.0:")[1].split()[0]) for line in server.log if "/metrics and /version" in line)
        for port in (server.port, ops):
            self.assertEqual(self.get(port, "/health/live"), (200, '{"status":"ok"}'))
            self.assertEqual(self.get(port, "/health/ready")[0], 200)
        self.assertRegex(json.loads(self.get(ops, "/version")[1])["version"], r"^\d+\.\d+\.\d+$")
        self.assertIn("vllm:cache_config_info{", self.get(ops, "/metrics")[1])
        self.assertEqual(self.get(ops, "/v1/models")[0], 404)
        self.assertEqual(self.get(server.port, "/metrics")[0], 401)
        key = {"Authorization": "Bearer a-key-0123456789abcdef"}
        loads = json.loads(self.get(server.port, "/v1/loads", **key)[1])
        self.assertEqual((loads["running"], loads["waiting"], loads["tokens_in_flight"]), (0, 0, 0))
        self.assertGreater(loads["kv_pages_total"], loads["kv_pages_used"])
        for host, status in (("vlcache", 200), ("vlcache:80", 200), ("host.docker.internal", 200), ("vlcache.default.svc.cluster.local", 200), ("attacker.example", 403)):
            self.assertEqual(self.get(server.port, "/v1/models", Host=host, **key)[0], status, host)
        server.process.send_signal(signal.SIGTERM)
        for _ in range(100):
            if self.get(server.port, "/health/ready")[0] == 503:
                break
            time.sleep(0.01)
        self.assertEqual(self.get(ops, "/health/ready")[0], 503)
        self.assertEqual(self.get(server.port, "/health/live")[0], 200)
        self.assertEqual(self.get(server.port, "/v1/models", **key)[0], 200)
        self.assertEqual(server.process.wait(60), 0)

    def test_the_start_says_what_is_served(self):
        server = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--host", "0.0.0.0"])
        self.addCleanup(server.kill)
        server.ready()
        log = "".join(server.log)
        for text in (f"http://localhost:{server.port}/ is the page", "text and images", "4096 tokens of context", "every caller has an administrator's rights"):
            self.assertIn(text, log)


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    except OSError:
        return False


class ConfigFile(ProgramTest):
    def test_flags_of_a_config_file(self):
        log = self.folder / "log"
        host = "[::1]" if has_ipv6() else "127.0.0.1"
        config = self.write("server.toml", f'[serve]\nmodel = "{MODEL}"\nport = 0\nhost = "{host}"\ncors = ["https://a.example", "https://b.example"]\naccess-log = "{log}"\n')
        server = ServerProcess([VLCACHE, "--config", config, "serve"])
        self.addCleanup(server.kill)
        for origin in ("https://a.example", "https://b.example"):
            connection = http.client.HTTPConnection(host.strip("[]"), server.port, timeout=60)
            self.assertEqual(server.answer("GET", "/v1/models", headers={"origin": origin}, connection=connection).getheader("access-control-allow-origin"), origin)
        self.assertEqual(server.end(), 0)
        self.assertEqual(len(log.read_text().splitlines()), 2)
        self.fails("--config", self.write("bad.toml", "[serve]\nno-such-flag = 1\n"), "serve", "-m", MODEL, says=["--config", "no-such-flag"])


if __name__ == "__main__":
    unittest.main()
