"""Small bodies cost little: objects of many members, and the bounds of docs/server/requests.md, at them, above and far above."""
import base64
import fcntl
import functools
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import threading
import time

from program import MODEL, ROOT, VLCACHE, ProgramTest
from server import ServerProcess
from test_server import Server

JPEG = ROOT / "tests/fixtures/images/files/progressive0.jpg"


# Objects and lists of n members, each made once: in bodies stand marks, which text_of() replaces.
KINDS = {"key": '"k{0}":{0}', "property": '"p{0}":{{}}', "name": '"p{0}"', "token": '"{0}":1', "big": '"k{0}":1{0:020}', "special": '"<|im_end|>{0}":{0}', "null": '"k{0}":null', "same": '"same":1',
         "message": '{{"role":"user","content":"a"}}', "call": '{{"function":{{"name":"f","arguments":"{{}}"}}}}', "result": '{{"role":"tool","content":"1"}}', "reference": '{{"type":"item_reference","id":"m{0}"}}'}


@functools.lru_cache(maxsize=None)
def members(kind, n):
    return ",".join(map(KINDS[kind].format, range(n)))


def text_of(body):
    text = re.sub(r'"@object (\w+) (\d+)"', lambda m: "{" + members(m[1], int(m[2])) + "}", json.dumps(body))
    return re.sub(r'(?:"@": )?"@members (\w+) (\d+)"', lambda m: members(m[1], int(m[2])), text)


def keys(n, kind="key"):
    return f"@object {kind} {n}"


def among(n, kind="key"):
    return {"@": f"@members {kind} {n}"}


def listed(n, kind):
    return [f"@members {kind} {n}"]


def said(content="hi", **more):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **more}


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def schema(n, required=0):
    return {"type": "object", "properties": keys(n, "property"), "required": listed(required, "name") if required else []}


def called(arguments):
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "a", "content": "1"}]


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
# Where an object of n members may stand: path and body.
PLACES = {
    "body": (CHAT, lambda n: said(**among(n))),
    "body with a schema beside": (CHAT, lambda n: said(guided_json={"type": "object"}, **among(n))),
    "unknown field": (CHAT, lambda n: said(unknown=keys(n))),
    "the same name": (CHAT, lambda n: said(x=keys(n, "same"))),
    "big integers": (CHAT, lambda n: said(x=keys(n, "big"))),
    "metadata": (CHAT, lambda n: said(metadata=keys(n))),
    "message": (CHAT, lambda n: {"messages": [{"role": "user", "content": "hi", **among(n)}], "max_tokens": 1}),
    "image": (CHAT, lambda n: said([{"type": "image_url", "image_url": {"url": "data:,", **among(n)}}])),
    "logit_bias": (CHAT, lambda n: said(logit_bias=keys(n, "token"))),
    "vlcache": (CHAT, lambda n: said(vlcache=keys(n))),
    "mm_processor_kwargs": (CHAT, lambda n: said(mm_processor_kwargs=keys(n))),
    "chat_template_kwargs": (CHAT, lambda n: said(chat_template_kwargs=keys(n))),
    "special tokens as names": (CHAT, lambda n: said(chat_template_kwargs=keys(n, "special"))),
    "structured_outputs": (CHAT, lambda n: said(structured_outputs=keys(n, "null"))),
    "response_format": (CHAT, lambda n: said(response_format={"type": "json_schema", "json_schema": {"schema": schema(n)}})),
    "keywords of a schema": (CHAT, lambda n: said(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object", **among(n)}}})),
    "required": (CHAT, lambda n: said(response_format={"type": "json_schema", "json_schema": {"schema": schema(n // 2, n // 2)}})),
    "forbidden": (CHAT, lambda n: said(response_format={"type": "json_schema", "json_schema": {"schema": {**schema(1), "not": schema(1, n // 8)}}})),
    "tools": (CHAT, lambda n: said(tools=[tool(schema(n))])),
    "tools with required": (CHAT, lambda n: said(tools=[tool(schema(n, n))])),
    "a call that must be": (CHAT, lambda n: said(tools=[tool(schema(n // 2, n // 2))], tool_choice="required")),
    "arguments": (CHAT, lambda n: {"messages": called(keys(n)), "max_tokens": 1}),
    "arguments as text": (CHAT, lambda n: {"messages": called(text_of(keys(n))), "max_tokens": 1}),
    "input": (MESSAGES, lambda n: {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": keys(n)}]},
                                                                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]}]}),
    "input_schema": (MESSAGES, lambda n: {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f", "input_schema": schema(n, n)}]}),
    "metadata of responses": (RESPONSES, lambda n: {"input": "hi", "max_output_tokens": 1, "metadata": keys(n)}),
    "item": (RESPONSES, lambda n: {"input": [{"type": "web_search_call", "id": "a", **among(n)}], "max_output_tokens": 1}),
    "completions": ("/v1/completions", lambda n: {"prompt": "hi", "max_tokens": 1, "logit_bias": keys(n, "token"), **among(n)}),
    # Not objects, but of as many items.
    "messages": (CHAT, lambda n: {"messages": listed(n // 2, "message"), "max_tokens": 1}),
    "calls": (CHAT, lambda n: {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": listed(n // 4, "call")},
                                            *listed(n // 4, "result")], "max_tokens": 1}),
    "references": (RESPONSES, lambda n: {"input": listed(n // 2, "reference"), "max_output_tokens": 1}),
}


class Members(Server):
    FLAGS = ("--response-store", "16MiB", "--quiet", "--ops-port", "0")

    def cpu_seconds(self):
        """Of all threads of the server so far, to the nanosecond."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()) / 1e9

    def cost(self, path, data):
        """Of a request, which the server may refuse, but not as its own fault."""
        before = self.cpu_seconds()
        answer = self.answer("POST", path, data)
        self.assertLess(answer.status, 500, answer.text)
        return self.cpu_seconds() - before

    def test_time_is_nearly_linear_in_members(self):
        self.wait_until_idle()
        for name, (path, body) in PLACES.items():
            with self.subTest(name):
                few_keys, many_keys = text_of(body(20_000)), text_of(body(80_000))
                few, many = [], []
                # 30 ms: what a request and fresh memory cost beside its objects. The best of eight, for a machine that does other work.
                while len(many) < 8 and not (many and min(many) < 6 * min(few) + 0.03):
                    few.append(self.cost(path, few_keys))
                    many.append(self.cost(path, many_keys))
                self.assertLess(min(many), 6 * min(few) + 0.03, f"{1000 * min(few):.0f} ms, {1000 * min(many):.0f} ms for {len(many_keys)} bytes")

    def test_health_is_answered_beside_large_bodies(self):
        body = json.dumps(said(unknown={f"key{i:05}": "twelve chars" for i in range(23_500)}))
        self.assertGreater(len(body), 633 << 10)
        ops = int(re.search(r":([0-9]+) has /health", "".join(self.server.log)).group(1))
        for _ in range(3):  # for a machine that does other work
            clients = [threading.Thread(target=self.answer, args=("POST", CHAT, body)) for _ in range(16)]
            for client in clients:
                client.start()
            slowest = 0
            while any(client.is_alive() for client in clients):
                for method, path, port in (("GET", "/health", self.port), ("HEAD", "/health/live", self.port), ("GET", "/metrics", self.port), ("GET", "/version", self.port), ("GET", "/health", ops)):
                    begin = time.monotonic()
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                    self.assertEqual(self.server.answer(method, path, connection=connection).status, 200)
                    slowest = max(slowest, time.monotonic() - begin)
            for client in clients:
                client.join()
            if slowest < 0.5:
                return
        self.fail(f"the slowest of these routes took {slowest:.2f} s")


class Bounds(Server):
    FLAGS = ("--max-megapixels", "1", "--quiet")

    def refused(self, body, says, status=400, path=CHAT):
        found, answer = self.call("POST", path, body)
        self.assertEqual(found, status, answer)
        self.assertIn(says, answer["error"]["message"])

    def allowed(self, body, path=CHAT):
        """The answer's message if it is an error of another kind: the prompt may be too long."""
        status, answer = self.call("POST", path, body)
        if status != 200:
            self.assertRegex(answer["error"]["message"], "^the prompt has more than|^prompt is too long: ")

    def test_messages(self):
        one = {"role": "user", "content": "a"}
        for path, field in ((CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input")):
            more = {"max_tokens": 1} if field == "messages" else {"max_output_tokens": 1}
            if path == CHAT:
                self.allowed({field: [one] * 65_536, **more}, path)
            self.refused({field: [one] * 65_537, **more}, f"{field}: expected at most 65536, found 65537", path=path)
        self.refused('{"messages": [' + "{}," * 6_553_599 + "{}]}", "the request's body: more than 4000000 values", 413)
        self.refused({"messages": [{}] * 655_360}, "messages: expected at most 65536, found 655360")

    def test_values(self):
        # The object, its fields, a message and its two fields, and the list.
        body = lambda n: '{"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "x": [' + ",".join("0" for _ in range(n - 7)) + "]}"
        self.allowed(body(4_000_000))
        self.refused(body(4_000_001), "the request's body: more than 4000000 values (members and items); send fewer", 413)
        self.refused(body(5_000_000), "the request's body: more than 4000000 values", 413)

    def test_logit_bias(self):
        n = json.loads((MODEL / "config.json").read_text())["text_config"]["vocab_size"]
        ids = lambda n_more: {**{str(i): 1 for i in range(n)}, **{f"{i:09}": 1 for i in range(n_more)}}
        self.allowed(said(logit_bias=ids(0)))
        for more in (1, 99 * n):
            self.refused(said(logit_bias=ids(more)), f"logit_bias: expected at most {n} tokens, the vocabulary's, found {n + more}")

    def test_stops(self):
        self.allowed(said(stop=[f"{i:04}" for i in range(1024)]))
        for stops in ([f"{i:04}" for i in range(1025)], ["x" * 65_537], ["stop"] * 102_400):
            self.refused(said(stop=stops), "stop: expected at most 1024 texts of 65536 bytes in all, found")
        self.refused(said(stop_token_ids=[1] * 1_000_000), "stop_token_ids: expected at most")

    def test_tokens(self):
        context = self.call("GET", "/v1/models")[1]["data"][0]["max_model_len"]
        for path, prompt in (("/v1/completions", lambda text: {"prompt": text, "max_tokens": 1}), (CHAT, said)):
            count = lambda text: self.call("POST", "/tokenize", {"prompt": text} if path != CHAT else said(text))[1]["count"]
            text, frame = " a" * 100, count("") if path == CHAT else 0
            each = (count(text) - frame) / 100
            fits = int((context - 1 - count(" a")) / each) if each > 0 else 0
            if path != CHAT:
                self.allowed(prompt(" a" * fits), path)
            for n in (fits + 50, 100 * fits if path != CHAT else 10 * fits):
                status, answer = self.call("POST", path, prompt(" a" * n))
                self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), answer)
                self.assertIn("the prompt has", answer["error"]["message"])
                self.assertIn(f"the model's context is {context}", answer["error"]["message"])
        # What asks for nothing but the count gets it.
        self.assertGreater(self.call("POST", "/tokenize", {"prompt": " a" * 2 * context})[1]["count"], context)

    def test_scans_of_a_jpeg(self):
        data = JPEG.read_bytes()
        at = data.rfind(b"\xff\xda")  # the last scan, to be there again
        for n, status in ((1, 200), (400, 200), (600, 413), (50_000, 413)):
            url = "data:image/jpeg;base64," + base64.b64encode(data[:at] + data[at:-2] * n + data[-2:]).decode()
            found, answer = self.call("POST", CHAT, said([{"type": "image_url", "image_url": {"url": url}}]))
            self.assertEqual(found, status, answer)
            if status != 200:
                self.assertIn("scans; the limit is 500 at this size", answer["error"]["message"])

    def test_names_of_a_schema(self):
        shape = {"type": "object", "additionalProperties": {"type": "string"}}
        for bound in ("minProperties", "maxProperties"):
            self.refused(said(response_format={"type": "json_schema", "json_schema": {"schema": {**shape, bound: 2_000_000_000}}}), bound)
        self.refused(said(guided_json='{"a":' * 100_000 + "1" + "}" * 100_000), "guided_json: expected a JSON schema")


class Grace(ProgramTest):
    """What still works for a request when --grace is over is given up."""

    def start(self, *flags, grace=2):
        server = ServerProcess([*self.before, VLCACHE, "serve", "-m", MODEL, "--port", "0", "--grace", grace, *flags]).ready()
        self.addCleanup(server.kill)
        return server

    before = ()

    def send(self, server, body, path=CHAT):
        connection = server.connect()
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        return connection

    def over_in_time(self, server):
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=30), 0, server.log)
        self.assertLess(time.monotonic() - begin, 3)
        server.reader.join()
        return "".join(server.log)

    def test_a_host_that_does_not_answer(self):
        with socket.create_server(("127.0.0.1", 0)) as host:
            url = f"http://127.0.0.1:{host.getsockname()[1]}/"
            server = self.start("--image-url-prefix", url, "--image-timeout", "600")
            asking = self.send(server, said([{"type": "image_url", "image_url": {"url": url + "a.png"}}]))
            host.accept()[0].recv(100)
            self.assertNotIn("given up", self.over_in_time(server))
            asking.close()

    def test_tokenising(self):
        server = self.start(grace=0)
        asking = self.send(server, {"prompt": "ab" * 8_000_000}, "/tokenize")
        time.sleep(0.5)
        self.over_in_time(server)
        asking.close()

    def test_what_cannot_be_ended(self):
        log = self.folder / "log"
        os.mkfifo(log)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)  # which never reads: the pipe becomes full
        self.addCleanup(os.close, reader)
        self.before = ("sh", "-c", 'exec "$@" > "$0"', log)
        server = self.start("--access-log", "-", "--cache-disk", self.folder / "kv")
        self.assertEqual(server.answer("POST", CHAT, said("hello there")).status, 200)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        connections = [self.send(server, {"tokens": [1]}, "/detokenize") for _ in range(100)]
        time.sleep(0.5)
        self.assertIn("given up", self.over_in_time(server))
        for connection in connections:
            connection.close()
