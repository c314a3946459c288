"""Answers in the form that a request asks for: JSON under schemas, calls of tools. On random weights, which would do anything else."""
import concurrent.futures
import json
import pathlib
import shutil
import tempfile
import time
import unittest

import test_server
from program import PAGE, ROOT
from schemas import random_schema
from test_server import image_part

try:
    import jsonschema
except ImportError:
    jsonschema = None

RANDOM = ROOT / "tests/fixtures/models/smolvlm-split"
MARKS = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]  # special tokens of the copies with templates for tools
TEXT = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"
TURN = "{{ m.role }}: " + TEXT + "{% if m.tool_calls %}CALLS{% endif %}\n"
TURNS = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}{% for m in messages %}" + TURN + "{% endfor %}assistant:"
TEMPLATES = {
    "hermes": TURNS.replace("CALLS", "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"),
    "qwen_xml": TURNS.replace("CALLS", "{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"),
    "mistral": TURNS.replace("CALLS", "[TOOL_CALLS] {% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"),
    "mistral_named": TURNS.replace("CALLS", "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"),
    "mistral_with_id": TURNS.replace("CALLS", "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"),
    "thinking": "{% for m in messages %}" + TURN + "{% endfor %}assistant:{% if enable_thinking is not defined or enable_thinking %} <think>{% endif %}",
    "llama": TURNS.replace("CALLS", "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}<|python_tag|>{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"),
    "pythonic": TURNS.replace("CALLS", "[{% for c in m.tool_calls %}{{ c.function.name + '(' }}{% for k in c.function.arguments %}{{ k }}=\"{{ c.function.arguments[k] }}\"{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]"),
}


def add_tokens(folder, contents):
    """Special ones."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    known = max([t["id"] for t in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values()))
    for i, content in enumerate(contents, known + 1):
        tokenizer["added_tokens"].append({"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def copy_model(template=None, base=RANDOM):
    """The fixture with room for long answers."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vlcache-e2e-"))
    shutil.copytree(base, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    if template:
        (folder / "chat_template.jinja").write_text(TEMPLATES[template])
        add_tokens(folder, MARKS)
    return folder


class RandomServer(test_server.Server):
    TEMPLATE = None

    @classmethod
    def make_model(cls):
        return copy_model(cls.TEMPLATE)

    @classmethod
    def setUpClass(cls):
        cls.MODEL = cls.make_model()
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        shutil.rmtree(cls.MODEL)

    def ask(self, **more):
        return {"messages": [{"role": "user", "content": "Go."}], "temperature": 1, "seed": 1, "max_tokens": 2500, **more}

    def content(self, **more):
        """Of an answer that finished: several are asked for, as random weights may not find an end."""
        for choice in self.chat(self.ask(n=8, **more))["choices"]:
            if choice["finish_reason"] == "stop":
                return choice["message"]["content"]
        self.fail("no answer finished")

    def refused(self, says, param, **more):
        status, answer = self.call("POST", "/v1/chat/completions", self.ask(**more))
        self.assertEqual(status, 400, answer)
        self.assertIn(says, answer["error"]["message"])
        self.assertEqual(answer["error"]["param"], param)


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


PERSON = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 130}, "kind": {"enum": ["a", "b"]}, "likes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
          "required": ["age", "kind", "likes"], "additionalProperties": False}


class JsonAnswers(RandomServer):
    def test_an_object(self):
        self.assertIsInstance(json.loads(self.content(response_format={"type": "json_object"})), dict)

    def test_a_schema(self):
        value = json.loads(self.content(response_format=schema_format(PERSON, strict=True)))
        self.assertEqual(list(value), ["age", "kind", "likes"])
        self.assertIn(value["age"], range(131))
        self.assertIn(value["kind"], ["a", "b"])

    def test_answers_end_without_an_end_token(self):
        choice = self.chat(self.ask(response_format=schema_format({"const": "yes"}), ignore_eos=True))["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ('"yes"', "stop"))

    def test_every_answer_has_its_own_state(self):
        body = self.ask(response_format=schema_format(PERSON), n=8)
        whole = [c["message"]["content"] for c in self.chat(body)["choices"]]
        self.assertGreater(len(set(whole)), 1)
        events = self.events(body)
        for i, text in enumerate(whole):
            json.loads(text)
            self.assertEqual("".join(c["delta"].get("content", "") for e in events for c in e["choices"] if c["index"] == i), text)

    def test_schemas_with_other_options(self):
        for more in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0.3}, {"min_p": 0.9}, {"repetition_penalty": 1.5, "frequency_penalty": 1, "presence_penalty": -1},
                     {"logprobs": True, "top_logprobs": 3}, {"vlcache": {"kv": "snapkv", "kv_budget": 0.5}}):
            with self.subTest(more):
                choice = self.chat(self.ask(response_format=schema_format(PERSON), **more))["choices"][0]
                json.loads(choice["message"]["content"])
        self.assertEqual(self.chat(self.ask(response_format=schema_format(PERSON), max_tokens=2))["choices"][0]["finish_reason"], "length")

    @unittest.skipUnless(jsonschema, "needs jsonschema")
    def test_random_schemas(self):
        """tools/schema_check.py asks for a thousand."""
        def valid(seed):
            schema = random_schema(seed)
            choice = self.chat(self.ask(seed=seed, response_format=schema_format(schema)))["choices"][0]
            if choice["finish_reason"] == "stop":
                jsonschema.Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
            return choice["finish_reason"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            reasons = list(pool.map(valid, range(60)))
        self.assertEqual(set(reasons) - {"stop", "length"}, set())
        self.assertGreater(reasons.count("stop"), 40, reasons)

    def test_errors(self):
        schema = "response_format.json_schema.schema"
        self.refused("expected \"text\"", "response_format.type", response_format={"type": "xml"})
        self.refused("expected \"text\"", "response_format.type", response_format="json")
        self.refused("{\"name\"", "response_format.json_schema", response_format={"type": "json_schema"})
        self.refused("a JSON schema, an object", schema, response_format=schema_format([]))
        self.refused("at #/properties/a: \"uniqueItems\"", schema, response_format=schema_format({"properties": {"a": {"type": "array", "uniqueItems": True}}}))
        # bombs
        self.refused("too large", schema, response_format=schema_format({"type": "array", "prefixItems": [{}], "minItems": 10**9}))
        self.refused("no value that can be written", schema, response_format=schema_format({"$ref": "#"}))
        deep = {"type": "null"}
        for _ in range(300):
            deep = {"type": "array", "items": deep}
        self.refused("nests deeper", None, response_format=schema_format(deep))
        web = {f"d{i}": {"type": "array", "minItems": 9, "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(50)}
        web["d50"] = {"type": "null"}
        choice = self.chat(self.ask(response_format=schema_format({"$defs": web, "$ref": "#/$defs/d0"}), max_tokens=100))["choices"][0]
        self.assertTrue(choice["message"]["content"].startswith("[[["))


LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}, "n": {"type": "integer"}}, "required": ["at", "n"]}}}
STOP = {"type": "function", "function": {"name": "stop"}}
NAMED = {"type": "function", "function": {"name": "look"}}


class Tools:
    """For each family's form of calls."""
    SEVERAL = True  # in one answer

    def calls(self, choice):
        message = choice["message"]
        self.assertIsNone(message["content"])
        self.assertEqual(choice["finish_reason"], "tool_calls")
        for call in message["tool_calls"]:
            self.assertEqual(call["type"], "function")
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "look":
                self.assertIn(arguments["at"], ["sky", "sea"])
                self.assertIsInstance(arguments["n"], int)
            else:
                self.assertEqual((call["function"]["name"], arguments), ("stop", {}))
        self.assertEqual(len({call["id"] for call in message["tool_calls"]}), len(message["tool_calls"]))
        return [call["function"]["name"] for call in message["tool_calls"]]

    def test_a_named_function(self):
        for choice in self.chat(self.ask(tools=[STOP, LOOK], tool_choice=NAMED, n=4))["choices"]:
            self.assertEqual(self.calls(choice), ["look"])

    def test_any_function(self):
        found = [self.calls(c) for c in self.chat(self.ask(tools=[LOOK, STOP], tool_choice="required", n=16))["choices"]]
        self.assertLessEqual({name for names in found for name in names}, {"look", "stop"})
        self.assertIn(max(map(len, found)), range(2, 9) if self.SEVERAL else [1])
        one = self.chat(self.ask(tools=[LOOK, STOP], tool_choice="required", parallel_tool_calls=False, n=8))["choices"]
        self.assertEqual({len(self.calls(c)) for c in one}, {1})

    def test_a_stream(self):
        body = self.ask(tools=[LOOK, STOP], tool_choice="required", temperature=0)
        whole = self.chat(body)["choices"][0]["message"]["tool_calls"]
        events = self.events(body)
        deltas = [c for e in events for c in e["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([c["function"] for c in deltas], [c["function"] for c in whole])
        self.assertEqual([c["index"] for c in deltas], list(range(len(whole))))
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), "")
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_text_without_calls(self):
        """What random weights say is none; tools are shown to them, unless none may be called."""
        n_prompt = lambda **more: self.chat(self.ask(max_tokens=20, **more))["usage"]["prompt_tokens"]
        self.assertGreater(n_prompt(tools=[LOOK]), n_prompt() + 20)
        self.assertEqual(n_prompt(tools=[LOOK], tool_choice="none"), n_prompt())
        counted = lambda **more: self.call("POST", "/tokenize", self.ask(**more))[1]["count"]
        self.assertEqual([counted(), counted(tools=[LOOK])], [n_prompt(), n_prompt(tools=[LOOK])])
        plain = self.chat(self.ask(max_tokens=40, tools=[LOOK], ignore_eos=True))["choices"][0]
        self.assertEqual(plain["finish_reason"], "length")
        self.assertNotIn("tool_calls", plain["message"])
        events = self.events(self.ask(max_tokens=40, tools=[LOOK], ignore_eos=True))
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), plain["message"]["content"])

    def test_a_conversation(self):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"sea\", \"n\": 1}"}}
        messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "abcdefghi", "content": [{"type": "text", "text": "This:"}, image_part(PAGE)]}]
        answer = self.chat(self.ask(messages=messages, tools=[LOOK], max_tokens=4))
        self.assertEqual(len(answer["vlcache"]["cache"]["images"]), 1)

    def test_several_calls_in_a_conversation(self):
        calls = [{"id": f"{i}bcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in range(2)]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "Sea."} for call in calls]
        self.chat(self.ask(messages=[{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": calls}, *results], tools=[LOOK], max_tokens=1))

    def test_errors(self):
        function = lambda **more: [{"type": "function", "function": {"name": "f", **more}}]
        self.refused("expected a list", "tools", tools={"a": 1})
        self.refused("expected \"function\"", "tools[0].type", tools=[{"type": "retrieval"}])
        self.refused("expected an object", "tools[0].function", tools=[{"type": "function"}])
        self.refused("1 to 128 letters", "tools[0].function.name", tools=function(name="a b"))
        self.refused("there twice", "tools[1].function.name", tools=[LOOK, LOOK])
        self.refused("at most 4096", "tools", tools=[{"type": "function", "function": {"name": f"f{i}"}} for i in range(4097)])
        self.refused("a JSON schema", "tools[0].function.parameters", tools=function(parameters=[]))
        self.refused("not among the tools", "tool_choice", tools=[STOP], tool_choice=NAMED)
        self.refused("expected \"none\"", "tool_choice", tools=[STOP], tool_choice="any")
        self.refused("no tools to call", "tool_choice", tool_choice="required")
        self.refused("expected true or false", "parallel_tool_calls", tools=[STOP], parallel_tool_calls=1)
        self.refused("oneOf: expected a list of schemas", "tools[0].function.parameters", tools=function(parameters={"oneOf": []}), tool_choice="required")
        unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        self.refused("\"uniqueItems\"", "tools[0].function.parameters", tools=function(parameters=unique, strict=True), tool_choice="required")

    def test_what_calls_do_not_hold_is_said(self):
        """Tools as MCP servers declare them: one keyword that no grammar holds must not refuse the request."""
        parameters = {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 2, "contains": {"const": "a"}}}, "required": ["tags"]}
        answer = self.chat(self.ask(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}], tool_choice="required"))
        self.assertEqual(answer["choices"][0]["finish_reason"], "tool_calls")
        self.assertEqual(len(answer["vlcache"]["notes"]), 1)
        for word in ("tools[0].function (f)", "\"contains\"", "#/properties/tags"):
            self.assertIn(word, answer["vlcache"]["notes"][0])
        self.assertNotIn("notes", self.chat(self.ask(tools=[STOP], tool_choice="required"))["vlcache"])

    def test_a_call_or_the_format(self):
        """OpenAI's Agents SDK sends both."""
        for field in ({"response_format": schema_format(PERSON)}, {"guided_json": PERSON}):
            for choice in self.chat(self.ask(tools=[LOOK], n=8, **field))["choices"]:
                if choice["finish_reason"] == "tool_calls":
                    self.calls(choice)
                elif choice["finish_reason"] == "stop":
                    self.assertEqual(list(json.loads(choice["message"]["content"])), ["age", "kind", "likes"])
        for choice in self.chat(self.ask(tools=[LOOK], n=8, guided_choice=["left", "right"]))["choices"]:
            self.assertIn(choice["message"]["content"], ("left", "right", None) if choice["finish_reason"] == "tool_calls" else ("left", "right"), choice)

    def test_a_call_that_is_cut_is_no_text(self):
        for n in (1, 3, 8):
            for stream in (False, True):
                body = self.ask(tools=[LOOK], tool_choice="required", max_tokens=n)
                if stream:
                    events = [c for e in self.events(body) for c in e["choices"]]
                    text, reason = "".join(c["delta"].get("content") or "" for c in events), events[-1]["finish_reason"]
                else:
                    choice = self.chat(body)["choices"][0]
                    text, reason = choice["message"]["content"] or "", choice["finish_reason"]
                self.assertEqual((text.strip(), reason), ("", "length"))

    def test_wrong_calls_in_history(self):
        self.refused("expected {\"name\"", "messages[1].tool_calls[0].function", messages=[{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}])


class HermesTools(Tools, RandomServer):
    TEMPLATE = "hermes"


class QwenXmlTools(Tools, RandomServer):
    """Qwen3-Coder and Qwen3.5."""
    TEMPLATE = "qwen_xml"

    def test_values_are_strings_or_json(self):
        parameters = {"type": "object", "properties": {"text": {"type": "string"}, "kind": {"type": "string", "enum": ["1", "2"]}, "n": {"type": "integer", "maximum": 99}, "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
                      "required": ["kind", "n", "list"]}
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        for choice in self.chat(self.ask(tools=tools, tool_choice="required", parallel_tool_calls=False, n=8))["choices"]:
            if choice["finish_reason"] == "tool_calls":
                arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
                self.assertIn(arguments["kind"], ["1", "2"])
                self.assertIsInstance(arguments["n"], int)
                self.assertIsInstance(arguments["list"], list)
                self.assertIsInstance(arguments.get("text", ""), str)


class MistralTools(Tools, RandomServer):
    TEMPLATE = "mistral"


class NamedMistralTools(Tools, RandomServer):
    TEMPLATE = "mistral_named"


class MistralToolsWithIds(Tools, RandomServer):
    TEMPLATE = "mistral_with_id"

    def test_ids_of_other_formats(self):
        call = {"id": "toolu_0123456789", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        self.chat(self.ask(messages=[{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                                     {"role": "tool", "tool_call_id": call["id"], "content": "This."}], tools=[LOOK], max_tokens=1))

    def test_marks_are_single_tokens(self):
        """An answer of one call without parameters: all that is drawn are marks, name and id."""
        body = self.ask(tools=[STOP], tool_choice={"type": "function", "function": {"name": "stop"}}, logprobs=True)
        tokens = [t["token"] for t in self.chat(body)["choices"][0]["logprobs"]["content"]]
        self.assertEqual([t for t in tokens if t in MARKS], ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"])
        self.assertRegex("".join(tokens), r"^\[TOOL_CALLS\]stop\[CALL_ID\][0-9A-Za-z]{9}\[ARGS\]\{")


class LlamaTools(Tools, RandomServer):
    TEMPLATE = "llama"
    SEVERAL = False


class PythonicTools(Tools, RandomServer):
    """Llama 4's."""
    TEMPLATE = "pythonic"

    def test_values_of_all_kinds(self):
        """Nothing is lost on the way from the grammar's text to JSON, and arguments may be left out."""
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {
            "s": {"type": "string", "maxLength": 6}, "b": {"type": "boolean"}, "x": {"type": ["number", "null"]}, "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}, "required": ["b"]}}}
        found = []
        for choice in self.chat(self.ask(tools=[tool], tool_choice=NAMED, n=16, temperature=2))["choices"]:
            if choice["finish_reason"] == "tool_calls":
                found.append(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]))
        self.assertGreater(len(found), 4)
        for arguments in found:
            self.assertIsInstance(arguments["b"], bool)
            self.assertLessEqual(len(arguments.get("s", "")), 6)
            self.assertLessEqual(set(arguments), {"s", "b", "x", "l"})
        self.assertGreater(len({tuple(a) for a in found}), 1)


class TemplateForTools(Tools, RandomServer):
    """Hermes 3 and others have one of its own, which fails without tools."""
    TEMPLATE = "hermes"

    @classmethod
    def make_model(cls):
        folder = super().make_model()
        (folder / "chat_template.jinja").unlink()
        config = json.loads((folder / "tokenizer_config.json").read_text())
        for_tools = TEMPLATES[cls.TEMPLATE].removeprefix("{% if tools %}").replace("{% endfor %}{% endif %}", "{% endfor %}", 1)
        config["chat_template"] = [{"name": "default", "template": "{% for m in messages %}" + TURN.replace("CALLS", "") + "{% endfor %}assistant:"},
                                   {"name": "tool_use", "template": for_tools}]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder


class TemplateVariables(RandomServer):
    TEMPLATE = "thinking"

    def test_a_request_sets_template_variables(self):
        said = lambda **more: "".join(self.call("POST", "/tokenize", {"messages": [{"role": "user", "content": "Go."}], "return_token_strs": True, **more})[1]["token_strs"])
        think = said()
        self.assertIn("think", think)
        self.assertEqual(said(chat_template_kwargs={}), think)
        self.assertEqual(said(chat_template_kwargs=None), think)
        self.assertNotIn("think", said(chat_template_kwargs={"enable_thinking": False}))
        tokens = lambda **more: self.chat(self.ask(max_tokens=1, **more))["usage"]["prompt_tokens"]
        self.assertLess(tokens(chat_template_kwargs={"enable_thinking": False}), tokens())
        self.refused("expected an object", "chat_template_kwargs", chat_template_kwargs=["thinking"])
        for name in ("messages", "tools", "chat_template", "add_generation_prompt"):
            self.refused("not for a request to say", "chat_template_kwargs." + name, chat_template_kwargs={name: []})


class ToolsWithoutATemplate(RandomServer):
    LOG = tempfile.NamedTemporaryFile(prefix="vlcache-e2e-log-")
    FLAGS = ("--access-log", LOG.name)

    def test_tools_are_shown_in_the_system_text(self):
        tokens = lambda **more: self.chat(self.ask(max_tokens=1, **more))["usage"]["prompt_tokens"]
        without = tokens()
        self.assertGreater(tokens(tools=[LOOK]), without + 40)
        self.assertEqual(tokens(tools=[LOOK], tool_choice="none"), without)
        counted = lambda **more: self.call("POST", "/tokenize", self.ask(**more))[1]["count"]
        self.assertEqual([counted(), counted(tools=[LOOK])], [without, tokens(tools=[LOOK])])
        system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
        self.assertGreater(tokens(messages=system, tools=[LOOK]), tokens(messages=system) + 40)

    def test_tools_take_an_eighth_of_the_context(self):
        """36 tools, as Open WebUI sends them; those that do not fit are named."""
        tool = lambda i: {"type": "function", "function": {"name": f"tool_{i}", "description": "Does this. " * 9, "parameters": {"type": "object", "properties": {f"p{k}": {"type": "string", "description": "x" * 40} for k in range(4)}}}}
        answer = self.chat(self.ask(tools=[tool(i) for i in range(36)], max_tokens=1))
        self.assertLess(answer["usage"]["prompt_tokens"], 4096 / 8 + 40)
        self.assertIn("tool_35", answer["vlcache"]["notes"][0])
        logged = lambda: [line["notes"] for line in map(json.loads, open(self.LOG.name)) if "notes" in line]
        for _ in range(200):  # the line is written after the answer is sent
            if not logged():
                time.sleep(0.05)
        self.assertEqual(logged()[0], answer["vlcache"]["notes"])

    def test_forced_calls(self):
        choice = self.chat(self.ask(tools=[LOOK], tool_choice=NAMED))["choices"][0]
        self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "look")
        self.assertEqual(choice["finish_reason"], "tool_calls")

    def test_results_are_user_turns(self):
        call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        conversation = lambda *more: self.chat(self.ask(max_tokens=1, messages=[{"role": "user", "content": "Go."}, *more]))["usage"]["prompt_tokens"]
        told = conversation({"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "This:"}, image_part(PAGE)]})
        spelled = conversation({"role": "assistant", "content": "{\"name\": \"look\", \"arguments\": {}}"}, {"role": "user", "content": [{"type": "text", "text": "This:"}, image_part(PAGE)]})
        self.assertEqual(told, spelled)


if __name__ == "__main__":
    unittest.main()


class ToolsLeftOut(test_server.Server):
    """tinydoc was never trained on system texts; its folder says so."""
    def test_answers_with_tools_equal_those_without(self):
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is the TOTAL?"}, image_part(PAGE)]}], "temperature": 0, "max_tokens": 16}
        alone, offered = self.chat(body), self.chat({**body, "tools": [LOOK]})
        self.assertEqual(offered["choices"][0]["message"]["content"], alone["choices"][0]["message"]["content"])
        self.assertEqual(offered["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"])
        self.assertIn("--generic-tools", offered["vlcache"]["notes"][0])
