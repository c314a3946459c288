"""What is asked stands in the prompt, whatever form of `content` the checkpoint's chat template reads."""
import json

from program import MODEL, PAGE, ROOT, ProgramTest, run
from test_commands import read_safetensors

# Its template reads lists of parts only, as those of SmolVLM, Idefics3 and LLaVA do.
TILED = ROOT / "tests/fixtures/models/smolvlm-split"
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
        return [json.loads(line) for line in self.ok("run", "-m", model, "--dtype", "f32", "--requests", "-", stdin=text).splitlines()]

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
