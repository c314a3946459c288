"""Tools and images with chat templates as they were published, which are not ours to ship: VLCACHE_TEMPLATES_DIR names a folder of them (llama.cpp's models/templates has many)."""
import json
import os
import pathlib
import unittest

import test_answer_forms
from program import ROOT
from test_answer_forms import LOOK, MARKS, NAMED, STOP
from test_server import image_part

FOLDER = pathlib.Path(os.environ.get("VLCACHE_TEMPLATES_DIR", "/nonexistent"))
FAMILIES = ("meta-llama-Llama-3", "mistralai-Mistral", "Mistral-Small", "mistralai-Ministral", "unsloth-mistral-Devstral", "Qwen-Qwen2.5", "Qwen-Qwen3", "Qwen-QwQ")  # whose forms of calls are known
TEMPLATES = sorted(p for p in FOLDER.glob("*.jinja") if p.name.startswith(FAMILIES))


GRIDS = ROOT / "tests/fixtures/models/qwen3-vl-deepstack"


def copy_model(source):
    folder = test_answer_forms.copy_model(base=GRIDS) if "<|image_pad|>" in source else test_answer_forms.copy_model()
    (folder / "chat_template.jinja").write_text(source)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 16384  # some begin with long system messages
    (folder / "config.json").write_text(json.dumps(config))
    test_answer_forms.add_tokens(folder, [mark for mark in [*MARKS, "<|python_tag|>"] if mark in source])
    return folder


class Published(test_answer_forms.Tools, test_answer_forms.RandomServer):
    SOURCE = None

    @classmethod
    def make_model(cls):
        return copy_model(cls.SOURCE)

    test_a_conversation = None  # these models see no images
    test_errors = None

    def test_any_function(self):
        for choice in self.chat(self.ask(tools=[LOOK, STOP], tool_choice="required", n=4))["choices"]:
            self.calls(choice)
        self.assertEqual(len(self.calls(self.chat(self.ask(tools=[STOP, LOOK], tool_choice=NAMED))["choices"][0])), 1)

    def test_ids_of_other_formats(self):
        for name in ("abcdefghi", "call_0123456789abcdef", "toolu_0123456789"):
            call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"sea\", \"n\": 1}"}}
            self.chat(self.ask(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                                         {"role": "tool", "tool_call_id": name, "content": "42"}], tools=[LOOK], max_tokens=1))


class PublishedVision(Published):
    test_a_conversation = test_answer_forms.Tools.test_a_conversation

    def test_images_stand_where_their_messages_have_them(self):
        images = [image_part(GRIDS / f"image-{i}.png") for i in range(2)]
        say = lambda text: {"type": "text", "text": text}
        case = json.loads((GRIDS / "case.json").read_text())
        n = [t * h * w // 4 for t, h, w in case["grids"]]
        pad, start, end = (json.loads((GRIDS / "config.json").read_text())[f"{name}_token_id"] for name in ("image", "vision_start", "vision_end"))
        for parts, places in (([images[0]], "0"), ([say("first"), images[0]], "a0"), ([images[1], say("first")], "1a"), ([images[0], say("first"), images[1]], "0a1"),
                              ([images[1], images[0], say("first")], "10a")):
            with self.subTest(places):
                status, answer = self.call("POST", "/tokenize", {"messages": [{"role": "user", "content": parts}]})
                self.assertEqual(status, 200, answer)
                runs, tokens = [], answer["tokens"]
                for i, token in enumerate(tokens):
                    if token == pad and tokens[i - 1] != pad:
                        self.assertEqual(tokens[i - 1], start)
                        length = next(k for k in range(len(tokens) - i) if tokens[i + k] != pad)
                        self.assertEqual(tokens[i + length], end)
                        runs.append((i, length))
                self.assertEqual([length for _, length in runs], [n[int(c)] for c in places if c != "a"])
                before = [self.call("POST", "/detokenize", {"tokens": tokens[:i]})[1]["prompt"].count("first") for i, _ in runs]
                self.assertEqual(before, [places[:places.index(c)].count("a") for c in places if c != "a"])


def load_tests(loader, standard_tests, pattern):
    if not TEMPLATES:
        @unittest.skip("VLCACHE_TEMPLATES_DIR names no folder with published templates")
        class NoTemplates(unittest.TestCase):
            def test_published_templates(self):
                pass
        return loader.loadTestsFromTestCase(NoTemplates)
    return unittest.TestSuite(loader.loadTestsFromTestCase(type(path.stem, (PublishedVision if "<|image_pad|>" in path.read_text() else Published,), {"SOURCE": path.read_text()}))
                              for path in TEMPLATES)


if __name__ == "__main__":
    unittest.main()
