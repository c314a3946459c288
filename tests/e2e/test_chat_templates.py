"""What is asked stands in the prompt, whatever form of `content` the checkpoint's chat template reads; fixture models through the program and the server."""
import json

import test_server
from program import MODEL, PAGE, ROOT, ProgramTest, run
from test_commands import read_safetensors

# Its template reads lists of parts only, as those of SmolVLM, Idefics3 and LLaVA do.
FIXTURES = ROOT / "tests/fixtures/models"
TILED = FIXTURES / "smolvlm-split"
QUESTION = "What is it?"


def part(text):
    return [{"type": "text", "text": text}]


# The ids that transformers gives for the same messages in parts:
# AutoTokenizer.from_pretrained(TILED).apply_chat_template(messages, add_generation_prompt=True)
ASKED = [0, 94, 124, 304, 67, 262, 96, 320, 323, 307, 125, 72, 5, 240, 74, 124, 124, 114, 380, 368, 67]
TOLD = [0, 92, 130, 380, 110, 118, 67, 262, 75, 110, 321, 318, 341, 55, 5, 240, 94, 124, 304, 67, 262, 96, 320, 323, 307, 125, 72, 5, 240, 74, 124, 124, 114, 380, 368, 67]
TURNS = [0, 94, 124, 304, 67, 262, 96, 320, 323, 307, 125, 72, 5, 240, 74, 124, 124, 114, 380, 368, 67, 262, 74, 319, 106, 112, 110, 55, 5, 240, 94, 124, 304, 67, 262, 96, 113, 327, 113, 72, 5, 240, 74, 124, 124, 114, 380, 368, 67]


class TextOnlyMessages(ProgramTest):
    def n_prompt(self, *args):
        return self.json("run", "-m", TILED, "--max-tokens", "1", "--json", *args)["tokens"]["prompt"]

    def requests(self, *requests, model=TILED):
        text = "".join(json.dumps({"max_tokens": 3, "temperature": 0, **r}) + "\n" for r in requests)
        return self.lines_of("run", "-m", model, "--dtype", "f32", "--requests", "-", stdin=text)

    def test_the_question_is_in_the_prompt(self):
        out = self.folder / "logits.safetensors"
        self.ok("logits", "-m", TILED, QUESTION, "-o", out)
        self.assertEqual(list(read_safetensors(out)["token_ids"][2]), ASKED)
        self.assertEqual(self.n_prompt(QUESTION), len(ASKED))
        self.assertEqual(self.n_prompt("--system", "Be brief.", QUESTION), len(TOLD))

    def test_messages_as_strings_and_as_parts(self):
        turns = [("user", QUESTION), ("assistant", "A page."), ("user", "Which?")]
        system = [("system", "Be brief."), ("user", QUESTION)]
        for messages, ids in ((turns, TURNS), (system, TOLD)):
            strings = [{"role": role, "content": text} for role, text in messages]
            parts = [{"role": role, "content": part(text)} for role, text in messages]
            a, b, c = self.requests({"messages": strings}, {"messages": parts}, {"messages": [*parts[:-1], strings[-1]]})
            self.assertEqual(a["tokens"]["prompt"], len(ids))
            self.assertEqual((a["token_ids"], a["tokens"]), (b["token_ids"], b["tokens"]))
            self.assertEqual((a["token_ids"], a["tokens"]), (c["token_ids"], c["tokens"]))

    def test_parts_for_a_template_that_takes_strings(self):
        model = self.copy_model()
        (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content + '\n' }}{% endfor %}")
        a, b, image = self.requests({"messages": [{"role": "user", "content": "Read the page."}]},
                                      {"messages": [{"role": "user", "content": [*part("Read "), *part("the page.")]}]},
                                      {"messages": [{"role": "user", "content": [{"type": "image", "image": str(PAGE)}, *part("x")]}]}, model=model)
        self.assertEqual((a["token_ids"], a["tokens"]), (b["token_ids"], b["tokens"]))
        self.assertIn("'user'", image["error"])

    def test_later_turns_of_a_chat(self):
        p = run("chat", "-m", TILED, "--max-tokens", "2", "--temperature", "0", stdin=f"{QUESTION}\n/stats\n{QUESTION}\n/stats\n")
        self.assertEqual(p.returncode, 0, p.stderr)
        first, second = (int(line.split(" of ")[1].split()[0]) for line in p.stderr.splitlines() if "came from the KV cache" in line)
        self.assertEqual(first, len(ASKED))
        self.assertGreaterEqual(second, 2 * len(ASKED) - 1)  # both questions and an answer; the start token once

    def test_a_system_text_that_the_template_rejects(self):
        model = self.copy_model()
        families = json.loads((ROOT / "tests/fixtures/chat/families.json").read_text())
        template, = (f["template"] for f in families if f["name"] == "llava-next-mistral")
        (model / "chat_template.jinja").write_text(template)
        told = self.json("tokenize", "-m", MODEL, "[INST] Be brief.\n\nhi [/INST]")
        self.assertEqual(self.json("run", "-m", model, "--max-tokens", "1", "--json", "--system", "Be brief.", "hi")["tokens"]["prompt"], len(told))
        ids = self.json("tokenize", "-m", MODEL, "[INST] hi [/INST]")
        self.assertEqual(self.json("run", "-m", model, "--max-tokens", "1", "--json", "hi")["tokens"]["prompt"], len(ids))


class Grids(ProgramTest):
    """Models whose images are grids of patches at three-component positions, with random weights: transformers' answers."""

    def asked(self, name):
        case = json.loads((FIXTURES / name / "case.json").read_text())
        images = [a for file in case["images"] for a in ("-i", FIXTURES / name / file)]
        return case, ("-m", FIXTURES / name, "--dtype", "f32", "--raw", case["prompt"], *images)

    def test_answers_are_transformers(self):
        for name in ("qwen3-vl-deepstack", "qwen2.5-vl-flat", "qwen2-vl-nested"):
            with self.subTest(name):
                case, args = self.asked(name)
                found = self.json("run", *args, "-n", len(case["greedy"]), "--temperature", 0, "--json")
                self.assertEqual(found["token_ids"], case["greedy"])
                self.assertEqual(found["tokens"]["vision"], sum(t * h * w // 4 for t, h, w in case["grids"]))
                chunked = self.json("run", *args, "-n", len(case["greedy"]), "--temperature", 0, "--json", "--prefill-chunk", 9, "--kv", "full")
                self.assertEqual(chunked["token_ids"], case["greedy"])

    def test_ids_of_the_prompt(self):
        case, args = self.asked("qwen3-vl-deepstack")
        out = self.folder / "logits.safetensors"
        self.ok("logits", *args, "-o", out)
        self.assertEqual(list(read_safetensors(out)["token_ids"][2]), case["input_ids"])

    def test_images_and_their_places_are_counted(self):
        case, args = self.asked("qwen3-vl-deepstack")
        self.fails("run", *args[:-2], says=["3 <|image_pad|> placeholder(s) for 2 image(s)"])
        self.fails("run", *args, "-i", PAGE, says=["3 <|image_pad|> placeholder(s) for 4 image(s)"])


class GridsOverHttp(test_server.Server):
    MODEL = FIXTURES / "qwen3-vl-deepstack"

    def body(self, order):
        images = iter(order["images"])
        messages = [{**m, "content": [test_server.image_part(self.MODEL / next(images)) if p["type"] == "image" else p for p in m["content"]]
                     if isinstance(m["content"], list) else m["content"]} for m in order["messages"]]
        for m in messages:
            for call in m.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        return {"messages": messages, **({"tools": order["tools"]} if order["tools"] else {})}

    def test_orders_of_texts_images_and_tools(self):
        orders = json.loads((self.MODEL / "orders.json").read_text())
        for order in orders:
            with self.subTest(order["order"]):
                status, found = self.call("POST", "/tokenize", self.body(order))
                self.assertEqual((status, found.get("tokens")), (200, order["input_ids"]), found)
        self.assertEqual(len(orders), 9)

    def test_an_answer_in_parts(self):
        order = json.loads((self.MODEL / "orders.json").read_text())[3]
        body = {**self.body(order), "temperature": 0, "max_tokens": 12, "ignore_eos": True}
        whole = self.chat(body)
        self.assertEqual(whole["usage"]["prompt_tokens"], len(order["input_ids"]))
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in self.events(body)), whole["choices"][0]["message"]["content"])
