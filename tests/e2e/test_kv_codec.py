"""Every way to answer, under a KV codec: attention reads codes, and the answer is the one that the request has alone, with nothing cached."""
import concurrent.futures
import contextlib
import json
import re
import shutil
import time
import unittest

import test_answer_forms
from program import MODEL, PAGE, VLCACHE, run
from server import ServerProcess, data_of
from test_server import Server, image_part

TABLE = MODEL / "demo/table.png"
WORDS = "Read this slowly, from the beginning to the end: what stands there, and what does not. "


def about(question, *images, n_words=1, system=None, **more):
    """Of 256 tokens for each image and about 60 n_words of text."""
    messages = [{"role": "user", "content": [*map(image_part, images), {"type": "text", "text": WORDS * n_words + question}]}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True, **more}


class Coded:
    """Mixed into a server's tests; CODEC."""
    @classmethod
    def prepare(cls, folder):
        cls.FLAGS = ("--kv-codec", cls.CODEC, "--reuse", "exact", "--parallel", "6")

    def chat(self, body):
        answer = super().chat({**body, "vlcache": {**body.get("vlcache", {}), "explain": True}})
        self.assertGreater(answer["vlcache"]["kv"]["coded_bytes_read"], 0)
        return answer

    def alone(self, body):
        return self.chat({**body, "vlcache": {**body.get("vlcache", {}), "reuse": "off"}})

    def together(self, *bodies):
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(self.chat, bodies))

    def assert_same(self, answer, expected, i=0, n=None):
        """Choice i and the expected answer, of which the first n tokens count."""
        tokens, others = (choice["logprobs"]["content"][:n] for choice in (answer["choices"][i], expected["choices"][0]))
        self.assertEqual([t["token"] for t in tokens], [t["token"] for t in others])
        for token, other in zip(tokens, others):
            self.assertAlmostEqual(token["logprob"], other["logprob"], delta=1e-3)

    def test_five_turns_of_chat(self):
        questions = [WORDS + question for question in ("What is the TOTAL?", "What is the DATE?", "And the NAME?", "The CITY?", "What is the TAX?")]
        p = run("chat", "-m", MODEL, "-i", PAGE, "--kv-codec", self.CODEC, "--dtype", "f32", "--reuse", "exact", "--temperature", "0", "--max-tokens", "8", "--explain", stdin="\n".join(questions))
        self.assertEqual(p.returncode, 0, p.stderr)
        answers = p.stdout.splitlines()
        found = [(int(n), int(of)) for n, of in re.findall(r"prompt: (\d+) of (\d+) tokens were found", p.stderr)]
        self.assertEqual((len(answers), len(found)), (5, 5))
        for (_, before), (n, _) in zip(found, found[1:]):
            self.assertGreaterEqual(n, before)  # continues where the turn before has ended
        body = about("", PAGE, max_tokens=8, ignore_eos=False)
        body["messages"][0]["content"][1]["text"] = questions[0]
        for answer, (_, n_prompt), question in zip(answers, found, questions[1:] + [""]):
            alone = self.alone(body)
            self.assertEqual(alone["usage"]["prompt_tokens"], n_prompt)
            content = alone["choices"][0]["message"]["content"]
            self.assertEqual(content.strip(), answer.strip())
            body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": question}]

    def test_reused_images_with_previews(self):
        """Alone, and at once with others."""
        for image in (PAGE, TABLE):
            self.chat(about("What is the TOTAL?", image, system="Look.", vlcache={"reuse": "static:r=0"}))  # leaves the image's KV
        for method in ("asked:r=0.2", "cacheblend:r=0.2"):
            ask = lambda n: about("What is the DATE?", TABLE, PAGE, system=f"{method} {n}.", vlcache={"reuse": method})
            first = self.chat(ask(1))
            self.assertEqual([image["source"] for image in first["vlcache"]["cache"]["images"]], ["ram", "ram"])
            self.assertLess(max(image["recomputed_tokens"] for image in first["vlcache"]["cache"]["images"]), 200)
            again, *others = self.together(ask(1), ask(2), ask(3))
            self.assert_same(again, first)
            self.assertEqual([image["source"] for other in others for image in other["vlcache"]["cache"]["images"]], ["ram"] * 4)
            self.assert_same(others[0], self.chat(ask(2)))

    def test_auto_compresses_after_a_while(self):
        ask = about("What is the TOTAL?", PAGE, n_words=5, max_tokens=80, vlcache={"kv_budget": 0.9})
        auto, full = self.alone(ask), self.alone({**ask, "max_tokens": 66, "vlcache": {}})
        self.assertEqual(auto["vlcache"]["kv"]["acted_after_tokens"], 64)
        self.assert_same(auto, full, n=65)
        self.assertLess(max(map(max, auto["vlcache"]["kv"]["slots"])), min(map(min, full["vlcache"]["kv"]["slots"])))
        for other in self.together(ask, ask):
            self.assert_same(other, auto)

    def test_evicts_while_prefilling(self):
        """The peak is lower, and as many slots stay: alone and in a batch."""
        ask = json.dumps({"prompt": WORDS * 4 + "What is the TOTAL?", "images": [str(PAGE), str(TABLE)], "ignore_eos": True, "max_tokens": 8, "kv": "snapkv", "kv_budget": 0.6}) + "\n"
        flags = ("run", "-m", MODEL, "--requests", "-", "--kv-codec", self.CODEC, "--dtype", "f32", "--reuse", "off", "--temperature", "0", "--prefill-chunk", "128")
        late, = self.lines_of(*flags, stdin=ask)
        early, *both = self.lines_of(*flags, "--kv-evict-while-prefill", stdin=ask) + self.lines_of(*flags, "--kv-evict-while-prefill", "--batch", "2", stdin=2 * ask)
        self.assertGreater(early["kv"]["coded_bytes_read"], 0)
        self.assertEqual(early["kv"]["slots"], late["kv"]["slots"])
        self.assertLess(early["kv"]["peak_bytes"], late["kv"]["peak_bytes"])
        for one in both:
            self.assertEqual((one["token_ids"], one["kv"]["slots"]), (early["token_ids"], early["kv"]["slots"]))

    def test_four_answers(self):
        ask = about("What is the TOTAL?", PAGE, temperature=3, seed=5)
        answer = self.chat({**ask, "n": 4})
        for i in range(4):
            self.assert_same(answer, self.alone({**ask, "seed": 5 + i}), i)
        self.assertGreater(len({choice["message"]["content"] for choice in answer["choices"]}), 1)

    def test_none_and_a_recomputed_window(self):
        ask = about("What is the TOTAL?", PAGE, max_tokens=3)
        full = self.alone(ask)
        for kv in ("none", "window_recompute:window=4000"):
            self.assert_same(self.chat({**ask, "vlcache": {"kv": kv}}), full)

    def test_a_client_that_leaves_a_stream(self):
        ask = about("What is the TOTAL?", PAGE, max_tokens=40)
        expected, idle = self.alone(ask), self.state()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with contextlib.closing(self.connect()) as c:
                c.request("POST", "/v1/chat/completions", json.dumps(about("Who?", TABLE, max_tokens=2000, stream=True, vlcache={"reuse": "off"})), {"content-type": "application/json"})
                events = data_of(c.getresponse())
                beside = pool.submit(self.alone, ask)
                for _ in range(9):
                    next(events)
            self.assert_same(beside.result(), expected)
        self.wait_until_idle()
        self.assertEqual(self.state()["kv"], idle["kv"])
        self.assert_same(self.alone(ask), expected)

    def test_int4_weights(self):
        line = lambda system, **more: {"prompt": WORDS * 2 + "What is the TOTAL?", "images": [str(PAGE)], "system": system, "max_tokens": 8, "logprobs": 0, "ignore_eos": True, **more}
        lines = [line("a", reuse="off"), line("b", reuse="off"), line("a"), line("b"), line("a")]
        answers = self.lines_of("run", "-m", MODEL, "--requests", "-", "--weights", "int4", "--kv-codec", self.CODEC, "--dtype", "f32", "--batch", "2", "--temperature", "0", "--reuse", "exact",
                                stdin="".join(json.dumps(line) + "\n" for line in lines))
        self.assertEqual({answer["weights"]["form"] for answer in answers}, {"int4"})
        self.assertGreater(answers[4]["cache"]["prefix_tokens"], 300)
        for i, answer in enumerate(answers):
            self.assertGreater(answer["kv"]["coded_bytes_read"], 0)
            self.assertEqual(answer["token_ids"], answers[i % 2]["token_ids"])
            for a, b in zip(answer["logprobs"], answers[i % 2]["logprobs"]):
                self.assertAlmostEqual(a["logprob"], b["logprob"], delta=1e-3)

    def test_shadow_requests(self):
        """Reuse is measured beside the answers, which stay as they are: for the codec of the requests alone."""
        plan, nothing = json.loads((MODEL / "reuse_plan.json").read_text()), {"cases": 0, "equal": 0, "kl": 0}
        unmeasured = self.write("unmeasured.json", json.dumps({**plan, "one_image": nothing, "several_images": nothing, "looking": ""}))
        server = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0", "--dtype", "f32", "--reuse-plan", unmeasured]).ready()
        self.addCleanup(server.kill)
        mine = {"kv_codec": self.CODEC, "explain": True}
        asked = [about("What is the TOTAL?", PAGE, system=before, vlcache=mine) for before in ("Be brief.", "Read the page.", "Look at it.")]
        answers = [json.loads(server.answer("POST", "/v1/chat/completions", body).text) for body in asked]
        until = time.monotonic() + 60
        while (counted := server.get("/v1/cache/stats"))["reuse"]["by_codec"][self.CODEC]["one_image"]["compared"] < 2 or counted["requests"]["running"]:
            self.assertLess(time.monotonic(), until, counted)
            time.sleep(0.05)
        self.assertEqual(counted["reuse"]["one_image"]["compared"], 0)  # of requests that name no codec
        for body, answer in zip(asked, answers):
            self.assertGreater(answer["vlcache"]["kv"]["coded_bytes_read"], 0)
            self.assertEqual(answer["vlcache"]["cache"]["images"][0]["reason"], "reuse is being measured")
            self.assert_same(answer, self.alone(body))
        again = json.loads(server.answer("POST", "/v1/chat/completions", asked[0]).text)
        self.assert_same(again, answers[0])

    def test_an_agents_tool_calls(self):
        """The same as without codes."""
        model = test_answer_forms.copy_model("hermes")
        self.addCleanup(shutil.rmtree, model)
        messages, lines = [{"role": "system", "content": "You use a computer. " + WORDS * 2}], []
        for i in range(4):
            call = {"id": f"call-{i}", "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": "sky", "n": i})}}
            messages = [*messages, {"role": "user", "content": [image_part((PAGE, TABLE)[i % 2]), {"type": "text", "text": f"Step {i}: {WORDS} What next?"}]}]
            lines.append({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
                          "body": {"messages": messages, "tools": [test_answer_forms.LOOK, test_answer_forms.STOP], "tool_choice": "required", "max_tokens": 120, "temperature": 0, "vlcache": {"explain": True}}})
            messages = [*messages, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": f"It shows {i}."}]
        calls = {}
        for codec in ("f32", self.CODEC):
            answers = [line["response"]["body"] for line in self.lines_of("run", "-m", model, "--requests", "-", "--dtype", "f32", "--reuse", "exact", "--kv-codec", codec, stdin="".join(json.dumps(line) + "\n" for line in lines))]
            for before, answer in zip(answers, answers[1:]):
                self.assertGreaterEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], before["usage"]["prompt_tokens"] - 1)
            self.assertEqual([answer["vlcache"]["kv"]["coded_bytes_read"] > 0 for answer in answers], [codec != "f32"] * 4)
            calls[codec] = [[call["function"] for call in answer["choices"][0]["message"]["tool_calls"]] for answer in answers]
        self.assertEqual(calls[self.CODEC], calls["f32"])
        self.assertGreater(len({str(call) for call in calls["f32"]}), 2)


class Int8(Coded, Server):
    CODEC = "int8"


if __name__ == "__main__":
    unittest.main()
