"""Answers that consist of special tokens, as docling's and MinerU's: shown or left out, on every endpoint, in lines and by flags."""
import base64
import json

from program import MODEL, PAGE, ROOT, run
from answering_model import CALLS, DOCTAGS, MINERU, is_special, make
from test_server import Server, about

WHOLE, PLAIN = "".join(DOCTAGS), "".join(token for token in DOCTAGS if not is_special(token))
COMPLETION = {"prompt": "Convert", "max_tokens": 64, "temperature": 0}
MESSAGES = {"messages": [{"role": "user", "content": "Convert this page to docling."}], "max_tokens": 64, "temperature": 0}
RESPONSE = {"input": "Convert this page to docling.", "max_output_tokens": 64, "temperature": 0}


class DocTags(Server):
    """A model whose vocabulary has DocTags: they are shown unless a request leaves them out."""

    @classmethod
    def prepare(cls, folder):
        cls.MODEL = folder / "doctags"
        make("doctags", cls.MODEL)

    def texts(self, **fields):
        """The text of an answer on every endpoint, whole and in a stream."""
        ask = lambda path, body: self.call("POST", path, {**body, **fields})[1]
        parts = lambda path, body, part: "".join(part(e) or "" for e in self.events({**body, **fields}, path))
        chat = {**about(PAGE, "Convert this page to docling."), "max_tokens": 64}
        complete = self.call("POST", "/v1/completions", {**COMPLETION, **fields, "stream": True})[1].decode()
        return {
            "chat": self.chat({**chat, **fields})["choices"][0]["message"]["content"],
            "chat, streamed": parts("/v1/chat/completions", chat, lambda e: e["choices"][0]["delta"].get("content")),
            "completions": ask("/v1/completions", COMPLETION)["choices"][0]["text"],
            "completions, streamed": "".join(json.loads(line[6:])["choices"][0]["text"] for line in complete.split("\n") if line.startswith("data: {")),
            "messages": ask("/v1/messages", MESSAGES)["content"][0]["text"],
            "messages, streamed": parts("/v1/messages", MESSAGES, lambda e: e.get("delta", {}).get("text")),
            "responses": ask("/v1/responses", RESPONSE)["output"][0]["content"][0]["text"],
            "responses, streamed": parts("/v1/responses", RESPONSE, lambda e: e["delta"] if e["type"] == "response.output_text.delta" else ""),
        }

    def test_every_endpoint_shows_or_skips_them(self):
        for fields, expected in (({}, WHOLE), ({"skip_special_tokens": None}, WHOLE), ({"skip_special_tokens": False, "spaces_between_special_tokens": False}, WHOLE), ({"skip_special_tokens": True}, PLAIN)):
            for where, text in self.texts(**fields).items():
                self.assertEqual(text, expected, (where, fields))
        for path, body in (("/v1/chat/completions", MESSAGES), ("/v1/completions", COMPLETION), ("/v1/messages", MESSAGES), ("/v1/responses", RESPONSE)):
            for name in ("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "return_token_ids"):
                for wrong in ("nonsense", "false", 0, 1, [], {}):
                    status, answer = self.call("POST", path, {**body, name: wrong})
                    self.assertEqual(status, 400, (path, name, wrong))
                    self.assertIn(f"{name}: expected true or false", answer["error"]["message"])

    def test_docling_gets_a_document(self):
        """What its preset for granite-docling sends (tools/clients/run.py --record): without a field about special tokens, and with a stop text that is one."""
        recorded = [json.loads(line) for line in (ROOT / "tests/clients/recorded.jsonl").read_text().splitlines()]
        (body,) = [r["body"] for r in recorded if r["program"] == "docling"]
        page = base64.b64encode(PAGE.read_bytes()).decode()
        answer = self.chat(json.loads(json.dumps(body).replace("@PAGE@", page)))["choices"][0]
        self.assertEqual((answer["message"]["content"], answer["finish_reason"]), (WHOLE.removesuffix("</doctag>"), "stop"))

    def test_the_end_of_the_turn_stays_out(self):
        answer = self.chat({**MESSAGES, "ignore_eos": True, "max_tokens": len(DOCTAGS) + 3, "return_token_ids": True})["choices"][0]
        self.assertEqual(answer["finish_reason"], "length")
        self.assertTrue(answer["message"]["content"].startswith(WHOLE), answer)
        self.assertNotIn("<|end|>", answer["message"]["content"])
        self.assertIn(1, answer["token_ids"])  # its id
        for stop in ({"stop_token_ids": [1]}, {"stop": ["<|end|>"]}):
            self.assertEqual(self.chat({**MESSAGES, **stop, "include_stop_str_in_output": True})["choices"][0]["message"]["content"], WHOLE)

    def test_stop_texts_see_what_is_shown(self):
        ask = lambda **more: self.chat({**MESSAGES, **more})["choices"][0]
        before = WHOLE[:WHOLE.index("</otsl>")]
        for stop, expected in (("</otsl>", before), ("<nl><rhed>", WHOLE[:WHOLE.index("<nl>")])):
            self.assertEqual((ask(stop=[stop])["message"]["content"], ask(stop=[stop])["finish_reason"]), (expected, "stop"))
            self.assertEqual(ask(stop=[stop], include_stop_str_in_output=True)["message"]["content"], expected + stop)
            self.assertEqual(ask(stop=[stop], skip_special_tokens=True)["message"]["content"], PLAIN)
            streamed = self.events({**MESSAGES, "stop": [stop], "include_stop_str_in_output": True})
            self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in streamed), expected + stop)
        (token,) = self.call("POST", "/tokenize", {"prompt": "</otsl>", "add_special_tokens": False})[1]["tokens"]
        self.assertEqual(ask(stop_token_ids=[token])["message"]["content"], before)
        self.assertEqual(ask(stop_token_ids=[token], include_stop_str_in_output=True)["message"]["content"], before + "</otsl>")
        self.assertEqual(ask(stop_token_ids=[token], include_stop_str_in_output=True, skip_special_tokens=True)["message"]["content"], PLAIN[:PLAIN.index("Thank")])

    def test_token_ids(self):
        ids = {}
        whole = self.chat({**MESSAGES, "return_token_ids": True, "n": 2})
        prompt = self.call("POST", "/tokenize", {"messages": MESSAGES["messages"]})[1]["tokens"]
        self.assertEqual(whole["prompt_token_ids"], prompt)
        answers = [choice["token_ids"] for choice in whole["choices"]]
        self.assertEqual(answers, [answers[0]] * 2)
        self.assertEqual(self.call("POST", "/detokenize", {"tokens": answers[0]})[1]["prompt"], WHOLE + "<|end|>")
        events = self.events({**MESSAGES, "return_token_ids": True, "n": 2})
        self.assertEqual([e["prompt_token_ids"] for e in events if "prompt_token_ids" in e], [prompt])
        for i in (0, 1):
            self.assertEqual([t for e in events for c in e["choices"] if c["index"] == i for t in c.get("token_ids", [])], answers[0])
        self.assertTrue(all(c["logprobs"] is None for e in events for c in e["choices"]))
        choice = self.call("POST", "/v1/completions", {**COMPLETION, "return_token_ids": True})[1]["choices"][0]
        self.assertEqual((choice["token_ids"], choice["prompt_token_ids"]), (answers[0], self.call("POST", "/tokenize", {"prompt": "Convert"})[1]["tokens"]))
        streamed = self.call("POST", "/v1/completions", {**COMPLETION, "return_token_ids": True, "stream": True})[1].decode()
        choices = [json.loads(line[6:])["choices"][0] for line in streamed.split("\n") if line.startswith("data: {")]
        self.assertEqual([t for c in choices for t in c["token_ids"]], answers[0])
        self.assertEqual([c["prompt_token_ids"] for c in choices if "prompt_token_ids" in c], [choice["prompt_token_ids"]])
        for path, body in (("/v1/messages", MESSAGES), ("/v1/responses", RESPONSE)):
            answer = self.call("POST", path, {**body, "return_token_ids": True})[1]
            self.assertEqual((answer["token_ids"], answer["prompt_token_ids"]), (answers[0], prompt), path)
            self.assertNotIn("token_ids", json.dumps(self.call("POST", path, body)[1]))
        self.assertNotIn("token_ids", json.dumps(self.chat(MESSAGES)))

    def test_logprobs_of_shown_tokens(self):
        content = self.chat({**MESSAGES, "logprobs": True, "top_logprobs": 1})["choices"][0]["logprobs"]["content"]
        self.assertEqual([t["token"] for t in content], [*DOCTAGS, "<|end|>"])
        self.assertEqual([bytes(t["bytes"]).decode() for t in content], [*DOCTAGS, "<|end|>"])
        told = self.call("POST", "/v1/completions", {**COMPLETION, "logprobs": 1})[1]["choices"][0]
        pairs = list(zip(told["logprobs"]["tokens"], told["logprobs"]["text_offset"]))[:-1]
        self.assertEqual([told["text"][at:at + len(token)] for token, at in pairs], list(DOCTAGS))

    def test_a_grammar_holds_all_the_same(self):
        answer = self.chat({**MESSAGES, "guided_choice": ["Item", "Lamp"]})["choices"][0]["message"]["content"]
        self.assertIn(answer, ("Item", "Lamp"))

    def test_allowed_tokens(self):
        ask = lambda **more: self.call("POST", "/v1/chat/completions", {**MESSAGES, **more})
        ids = self.chat({**MESSAGES, "return_token_ids": True})["choices"][0]["token_ids"]
        some = ids[:5] + ids[:5]
        choice = ask(allowed_token_ids=some, max_tokens=12, temperature=2, seed=3, return_token_ids=True)[1]["choices"][0]
        self.assertLessEqual(set(choice["token_ids"]), set(some))
        self.assertEqual((len(choice["token_ids"]), choice["finish_reason"]), (12, "length"))  # the end is not among them
        self.assertEqual(ask(allowed_token_ids=ids)[1]["choices"][0]["message"]["content"], WHOLE)
        for none in ([], None):
            self.assertEqual(ask(allowed_token_ids=none)[1]["choices"][0]["message"]["content"], WHOLE)
        for wrong in ([-1], [1 << 20], [1.5], ["1"], [True], "1", {"1": 1}, 1, [1] * 5000):
            status, answer = ask(allowed_token_ids=wrong)
            self.assertEqual((status, answer["error"]["param"]), (400, "allowed_token_ids"), wrong)
        status, answer = ask(allowed_token_ids=[ids[0]], guided_choice=["Item", "Lamp"])
        self.assertEqual(status, 400)
        self.assertIn("allowed_token_ids: none of these tokens", answer["error"]["message"])

    def test_echo_shows_what_answers_show(self):
        ask = lambda **more: self.call("POST", "/v1/completions", {**COMPLETION, "prompt": "<doctag>Item", "echo": True, **more})[1]["choices"][0]["text"]
        self.assertTrue(ask().startswith("<|begin|><doctag>Item"))
        self.assertTrue(ask(skip_special_tokens=True).startswith("Item"))

    def test_the_start_line_flags_lines_and_info(self):
        self.assertIn("answers of this model consist of special tokens (<doctag>, <otsl>)", "".join(self.server.log))
        answer = run("run", "-m", self.MODEL, "-i", PAGE, "Convert.")
        self.assertEqual(answer.stdout.strip(), WHOLE)
        self.assertIn("consist of special tokens (<doctag>, <otsl>)", answer.stderr)
        hidden = run("run", "-m", self.MODEL, "Convert.", "--skip-special-tokens", "on")
        self.assertEqual(hidden.stdout.strip(), PLAIN)
        self.assertNotIn("consist of", hidden.stderr)
        lines = [{"prompt": "Convert."}, {"prompt": "Convert.", "skip_special_tokens": True, "return_token_ids": True}, {"prompt": "Convert.", "skip_special_tokens": "no"}]
        answers = [json.loads(line) for line in run("run", "-m", self.MODEL, "--requests", "-", stdin="".join(json.dumps(line) + "\n" for line in lines)).stdout.splitlines()]
        self.assertEqual([answers[0]["text"], answers[1]["text"]], [WHOLE, PLAIN])
        self.assertEqual(len(answers[1]["prompt_token_ids"]), answers[1]["tokens"]["prompt"])
        self.assertIn("skip_special_tokens: expected true or false", answers[2]["error"])
        chat = run("chat", "-m", self.MODEL, "--skip-special-tokens", "on", stdin="Convert.\n")
        self.assertIn(PLAIN, chat.stdout)
        self.assertRegex(self.ok("info", "-m", self.MODEL), "special tokens +shown, as answers consist of them: <doctag>, <otsl>\n")
        self.assertNotIn("special tokens", self.ok("info", "-m", MODEL))

    def test_preempted_answers(self):
        lines = [{"prompt": "Convert. " + "x" * (30 + 7 * i), "stop": ["</doctag>"], "include_stop_str_in_output": True, "return_token_ids": True} for i in range(6)]
        out = run("run", "-m", self.MODEL, "--requests", "-", "--batch", "6", "--dtype", "f32", "--reuse", "off", "--kv-memory", "192KiB", stdin="".join(json.dumps(line) + "\n" for line in lines)).stdout
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([answer.get("text") for answer in answers], [WHOLE] * 6, answers)
        self.assertTrue(any("preemptions" in answer for answer in answers), answers)

    def test_a_model_without_its_own_sign_has_the_flag(self):
        model = self.folder / "mineru"
        make("mineru", model)
        ask = lambda *flags: run("run", "-m", model, "-i", PAGE, "Layout Detection:", *flags)
        self.assertEqual(ask().stdout.strip(), "100 200 300 400text")
        self.assertNotIn("consist of", ask().stderr)
        self.assertEqual(ask("--skip-special-tokens", "off").stdout.strip(), "".join(MINERU))


class Calls(Server):
    """A model whose marks of thoughts and calls are special tokens, as is what follows them."""

    @classmethod
    def prepare(cls, folder):
        cls.MODEL = folder / "calls"
        make("calls", cls.MODEL)

    def test_thoughts_and_calls_are_found_all_the_same(self):
        tool = {"type": "function", "function": {"name": "click", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}
        ask = lambda **more: {"messages": [{"role": "user", "content": "Click."}], "max_tokens": 64, "temperature": 0, **more}
        for skip, rest in ((None, ""), (True, ""), (False, "<|vision_pad|>")):
            answer = self.chat(ask(tools=[tool], skip_special_tokens=skip))["choices"][0]
            events = [e["choices"][0] for e in self.events(ask(tools=[tool], skip_special_tokens=skip))]
            joined = lambda name: "".join(e["delta"].get(name) or "" for e in events)
            (call,) = answer["message"]["tool_calls"]
            self.assertEqual((call["function"], answer["finish_reason"]), ({"name": "click", "arguments": '{"x":7}'}, "tool_calls"), answer)
            self.assertEqual([c["function"]["name"] for e in events for c in e["delta"].get("tool_calls", [])], ["click"])
            self.assertEqual((answer["message"].get("reasoning_content"), answer["message"]["content"] or ""), (joined("reasoning_content"), joined("content")))
            self.assertEqual((answer["message"]["reasoning_content"], (answer["message"]["content"] or "").strip()), ("It is called.", rest), answer)
        plain = self.chat(ask())["choices"][0]["message"]
        self.assertEqual((plain["reasoning_content"], plain["content"]), ("It is called.", CALLS[5]))
        shown = self.chat(ask(skip_special_tokens=False))["choices"][0]["message"]
        self.assertEqual((shown["reasoning_content"], shown["content"]), ("It is called.", "".join(CALLS[4:])))
