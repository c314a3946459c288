"""Tools with chat templates as they were published, which are not ours to ship: VLCACHE_TEMPLATES_DIR names a folder of them (llama.cpp's models/templates has many)."""
import json
import os
import pathlib
import unittest

import test_answer_forms
from test_answer_forms import LOOK, MARKS, NAMED, STOP

FOLDER = pathlib.Path(os.environ.get("VLCACHE_TEMPLATES_DIR", "/nonexistent"))
FAMILIES = ("meta-llama-Llama-3", "mistralai-Mistral", "Mistral-Small", "mistralai-Ministral", "unsloth-mistral-Devstral", "Qwen-Qwen2.5", "Qwen-Qwen3", "Qwen-QwQ")  # whose forms of calls are known
TEMPLATES = sorted(p for p in FOLDER.glob("*.jinja") if p.name.startswith(FAMILIES))


def copy_model(source):
    folder = test_answer_forms.copy_model()
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


def load_tests(loader, standard_tests, pattern):
    if not TEMPLATES:
        @unittest.skip("VLCACHE_TEMPLATES_DIR names no folder with published templates")
        class NoTemplates(unittest.TestCase):
            def test_published_templates(self):
                pass
        return loader.loadTestsFromTestCase(NoTemplates)
    return unittest.TestSuite(loader.loadTestsFromTestCase(type(path.stem, (Published,), {"SOURCE": path.read_text()})) for path in TEMPLATES)


if __name__ == "__main__":
    unittest.main()
