"""Broken models, images and prompts: exit code 2 and one line that says what was expected, found and where."""
import json
import os
import struct
import unittest

from program import MODEL, PAGE, ProgramTest, run


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class BadModels(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.copy_model()

    def ask(self, says):
        return self.fails("run", "-m", self.model, "-i", PAGE, "--max-tokens", "2", "hi", says=says)

    def edit(self, name, **changes):
        path = self.model / name
        config = json.loads(path.read_text())
        for key, value in changes.items():
            *parents, last = key.split("__")
            at = config
            for parent in parents:
                at = at[parent]
            if value is None:
                at.pop(last)
            else:
                at[last] = value
        path.write_text(json.dumps(config))

    def test_no_model(self):
        self.fails("run", "-m", self.folder / "nowhere", "hi", says="nowhere")
        self.fails("run", "-m", PAGE, "hi", says="invoice.png")
        empty = self.folder / "empty"
        empty.mkdir()
        self.fails("info", "-m", empty, says="config.json")

    def test_models_by_name(self):
        """In Hugging Face's local cache; nothing is fetched."""
        cache = self.folder / "hub"
        snapshot = cache / "models--org--tiny" / "snapshots" / "abc"
        snapshot.parent.mkdir(parents=True)
        snapshot.symlink_to(MODEL)
        (snapshot.parent.parent / "refs").mkdir()
        (snapshot.parent.parent / "refs" / "main").write_text("abc")
        env = {**os.environ, "HF_HUB_CACHE": str(cache)}
        self.assertEqual(run("tokenize", "-m", "org/tiny", "a", env=env).returncode, 0)
        self.assertEqual(run("tokenize", "-m", snapshot.parent.parent, "a").returncode, 0)  # one model inside
        self.fails("info", "-m", "org/other", says="hf download org/other", env=env)
        gguf = self.write("model.gguf", "GGUF")
        self.fails("info", "-m", gguf, says="GGUF files are not supported")
        self.fails("run", "-m", MODEL, "-i", "https://h.example/a.png", "hi", says=["found a URL", "https"])

    def test_words_that_were_probably_meant(self):
        self.fails("rnu", "-m", MODEL, says=["there is no command 'rnu'", "did you mean 'run'"])
        self.fails("run", "-m", MODEL, "--max-token", "3", "hi", says=["run has no flag '--max-token'", "did you mean '--max-tokens'"])

    def test_unknown_architecture_error_lists_the_supported_ones(self):
        self.edit("config.json", model_type="paligemma")
        self.ask(["paligemma", "llava", "idefics3"])

    def test_invalid_configs(self):
        for changes, says in (({"text_config__hidden_size": "256"}, ["hidden_size", "integer", '"256"']),
                              ({"text_config__num_hidden_layers": -1}, "num_hidden_layers"),
                              ({"text_config__num_key_value_heads": 3}, "num_key_value_heads"),
                              ({"text_config__vocab_size": 1 << 40}, "vocab_size"),
                              ({"text_config__intermediate_size": 577}, "mlp")):
            with self.subTest(changes):
                original = (self.model / "config.json").read_text()
                self.edit("config.json", **changes)
                self.ask(says)
                (self.model / "config.json").write_text(original)
        (self.model / "config.json").write_text("[" * 200000)
        self.ask(["config.json", "256"])
        (self.model / "config.json").write_text("")
        self.ask("config.json")

    def test_corrupt_weights(self):
        path = self.model / "model.safetensors"
        whole = path.read_bytes()
        (n,) = struct.unpack("<Q", whole[:8])
        header = json.loads(whole[8 : 8 + n])
        name = next(k for k in header if k != "__metadata__")
        f32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        cases = {"empty": b"", "short": whole[:7], "cut": whole[: len(whole) // 2], "header cut": whole[: 8 + n // 2],
                 "huge header": struct.pack("<Q", 1 << 62) + whole[8:], "100 MB header": struct.pack("<Q", 100 << 20) + b" " * 4096,
                 "brackets": safetensors(b'{"a":' + b"[" * 200000), "beyond": safetensors({"a": {**f32, "data_offsets": [0, 1 << 40]}}, bytes(8)),
                 "reversed": safetensors({"a": {**f32, "data_offsets": [8, 0]}}, bytes(8)),
                 "overlap": safetensors({"a": f32, "b": {**f32, "data_offsets": [4, 12]}}, bytes(12)),
                 "overflow": safetensors({"a": {**f32, "shape": [1 << 62, 1 << 62]}}, bytes(8)),
                 "negative": safetensors({"a": {**f32, "shape": [-2]}}, bytes(8)),
                 "no tensors": safetensors({})}
        for case, data in cases.items():
            with self.subTest(case):
                path.write_bytes(data)
                self.ask([])
        header[name + "x"] = header.pop(name)
        path.write_bytes(safetensors(header, whole[8 + n :]))
        self.ask(name.split(".")[-2])
        path.unlink()
        self.ask("model.safetensors")

    def test_invalid_tokenizers(self):
        self.edit("tokenizer.json", model__type="Mystery")
        self.ask("Mystery")
        (self.model / "tokenizer.json").unlink()
        self.ask("tokenizer.json")

    def test_missing_processors(self):
        for name in ("processor_config.json", "preprocessor_config.json"):
            (self.model / name).unlink(missing_ok=True)
        self.ask("preprocessor_config.json")

    def test_no_chat_template(self):
        (self.model / "chat_template.jinja").unlink()
        self.ask(["chat template", "--raw"])

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_unreadable_files(self):
        (self.model / "config.json").chmod(0)
        self.ask("config.json")


class BadPrompts(ProgramTest):
    def test_images(self):
        ask = ("run", "-m", MODEL, "--max-tokens", "2", "hi", "-i")
        self.fails(*ask, self.folder / "nowhere.png", says="nowhere.png")
        self.fails(*ask, self.folder, says=str(self.folder))
        for name, data in {"text.png": b"hello", "empty.jpg": b"", "cut.png": PAGE.read_bytes()[:300]}.items():
            (self.folder / name).write_bytes(data)
            self.fails(*ask, self.folder / name, says=name)
        bomb = bytearray(PAGE.read_bytes())
        bomb[16:24] = struct.pack(">II", 100000, 100000)
        (self.folder / "bomb.png").write_bytes(bomb)
        self.fails(*ask, self.folder / "bomb.png", says="bomb.png")

    def test_counts(self):
        raw = ("run", "-m", MODEL, "--raw", "--max-tokens", "2")
        self.fails(*raw, "<s>User: <image>\nhi", says=["1", "0"])
        self.fails(*raw, "<s>User: hi", "-i", PAGE, says=["0", "1"])
        self.fails("run", "-m", MODEL, "-i", PAGE, "<image:2> hi", says="<image:2>")

    def test_a_prompt_longer_than_the_context(self):
        self.fails("run", "-m", MODEL, "--raw", "A" * 6000, says=["6000", "4096"])

    def test_values(self):
        ask = ("run", "-m", MODEL, "hi")
        self.fails(*ask, "--kv-mode", "ful", says="full, none, static, streaming")
        self.fails(*ask, "--top-p", "2", says="top_p")
        self.fails("logits", "-m", MODEL, "--tokens", "1,99999", "-o", self.folder / "x", says="99999")
        (self.folder / "file").write_text("")
        self.fails("logits", "-m", MODEL, "--tokens", "1", "-o", self.folder / "file/folder/x", says="file/folder")
        self.fails("tokenize", "-m", MODEL, "--jsonl", "nowhere.jsonl", says="nowhere.jsonl")
        self.fails("detokenize", "-m", MODEL, "{}", says="expected a list")

    def test_no_memory(self):
        self.fails("run", "-m", MODEL, "-i", PAGE, "--kv-memory", "0.0001", "hi", says="KV cache is full")

    def test_a_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w") as full:
            import subprocess

            from program import VLCACHE
            p = subprocess.run([VLCACHE, "tokenize", "-m", str(MODEL), "hi"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(p.returncode, 2, p.stderr)
