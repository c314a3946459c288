"""Peak memory while a model is loaded: its packed weights, the largest fused matrix as the file has it, and 64 MiB."""
import json
import math
import os
import struct
import subprocess
import unittest

from program import ROOT, SHADOWED, VLCACHE, ProgramTest

MODELS = ROOT / "tests/fixtures/models"
MIB = 1 << 20
HIDDEN = 1024


def layer(p, ffn, width=HIDDEN):
    """Shapes of a layer's tensors but its MLP's, and of its MLP's if it is not of experts. width: of all heads."""
    shapes = {f"{p}self_attn.{x}_proj.weight": [width, HIDDEN] for x in "qkv"} | {f"{p}self_attn.o_proj.weight": [HIDDEN, width]}
    shapes |= {f"{p}{x}_layernorm.weight": [HIDDEN] for x in ("input", "post_attention")}
    return shapes | ({f"{p}mlp.{x}_proj.weight": [ffn, HIDDEN] for x in ("gate", "up")} | {f"{p}mlp.down_proj.weight": [HIDDEN, ffn]} if ffn else {})


@unittest.skipIf(SHADOWED, "ThreadSanitizer keeps memory of its own")
class LoadMemory(ProgramTest):
    def write_model(self, source, changes, shapes):
        """A model of zeros, of the fixture's configuration with changes. Returns the bytes of its tensors."""
        config = json.loads((MODELS / source / "config.json").read_text())
        config.get("text_config", config).update(changes)
        if "vision_config" in config:  # of an encoder that is not there
            config["vision_config"]["out_hidden_size"] = HIDDEN
        config["tie_word_embeddings"] = changes["tie_word_embeddings"]
        (self.folder / "config.json").write_text(json.dumps(config))
        header, size = {}, 0
        for name, shape in shapes.items():
            end = size + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
            size = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64 + 56)
        with open(self.folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size)  # a hole, which takes memory when it is read
        return size

    def check(self, source, changes, shapes, largest):
        """Loads such a model. largest: bytes of the largest fused matrix."""
        size = self.write_model(source, changes, shapes)
        with subprocess.Popen([VLCACHE, "run", "-m", self.folder, "--tokenizer", MODELS / "llama-gqa4", "--raw", "--weights", "int4", "--threads", "2",
                               "--cache-ram", "0", "--max-tokens", "1", "--json", "a"], stdout=subprocess.PIPE) as program:
            packed = json.loads(program.stdout.read())["weights"]["bytes"]
            _, status, usage = os.wait4(program.pid, 0)  # its own peak, mapped pages of files among it
            program.returncode = os.waitstatus_to_exitcode(status)
        bound = packed + largest + 64 * MIB
        self.assertLess(bound, size - 10 * MIB, "the test would not notice that the whole file stays in memory")
        self.assertLessEqual(usage.ru_maxrss * 1024, bound, f"packed {packed / MIB:.0f}, largest {largest / MIB:.0f}, source {size / MIB:.0f} MiB")

    def many_layers(self, n, ffn):
        shapes = {"model.embed_tokens.weight": [512, HIDDEN], "lm_head.weight": [512, HIDDEN], "model.norm.weight": [HIDDEN]}
        for i in range(n):
            shapes |= layer(f"model.layers.{i}.", ffn)
        changes = {"hidden_size": HIDDEN, "intermediate_size": ffn, "num_hidden_layers": n, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
                   "vocab_size": 512, "tie_word_embeddings": False}
        return changes, shapes

    def test_many_layers(self):
        ffn = 4096
        self.check("llama-gqa4", *self.many_layers(6, ffn), 2 * 2 * ffn * HIDDEN)

    def test_shared_weights_are_no_memory_of_the_process(self):
        """--packed-share, while the file is written, when it is there, and when it is cut short."""
        self.write_model("llama-gqa4", *self.many_layers(2, 4096))
        place = self.folder / "packed"
        ask = [VLCACHE, "run", "-m", self.folder, "--tokenizer", MODELS / "llama-gqa4", "--weights", "int4", "--packed-cache", place, "--threads", "2", "--cache-ram",
               "0", "--requests", "-"]

        def answer(program):
            program.stdin.write('{"prompt": "a", "raw": true, "max_tokens": 1}\n')
            program.stdin.flush()
            return json.loads(program.stdout.readline())

        def private(program):
            with open(f"/proc/{program.pid}/status") as status:
                return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))

        def start(*more):
            program = subprocess.Popen([*ask, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(program.communicate)
            return program, answer(program)

        built, first = start("--packed-share")
        file, = place.glob("*.vlw")
        size = file.stat().st_size
        shared, second = start("--packed-share")
        own, third = start()
        self.assertEqual(first["token_ids"], third["token_ids"])
        self.assertEqual(second["token_ids"], third["token_ids"])
        for program in (built, shared):
            with open(f"/proc/{program.pid}/maps") as maps:
                self.assertRegex(maps.read(), rf"r--s .*{file.name}")
            self.assertLess(private(program), private(own) - 0.8 * size)
        os.truncate(file, 8192)
        with self.assertRaises(ValueError):
            answer(shared)
        _, text = shared.communicate()
        self.assertEqual(shared.returncode, 2)
        self.assertRegex(text.splitlines()[-1], rf"^vlcache: {file}: .*was cut short")
        self.assertEqual(answer(own)["token_ids"], third["token_ids"])

    def test_tied_tables_that_are_compared(self):
        vocab = 98304
        shapes = {"model.embed_tokens.weight": [vocab, HIDDEN], "lm_head.weight": [vocab, HIDDEN], "model.norm.weight": [HIDDEN]}
        changes = {"hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
                   "vocab_size": vocab, "tie_word_embeddings": True}
        self.check("llama-gqa4", changes, shapes | layer("model.layers.0.", 64), 2 * vocab * HIDDEN)

    def test_stacked_experts(self):
        n, ffn = 64, 512
        p = "model.language_model."
        shapes = {f"{p}embed_tokens.weight": [512, HIDDEN], "lm_head.weight": [512, HIDDEN], f"{p}norm.weight": [HIDDEN]}
        p += "layers.0."
        shapes |= layer(p, 0, width=512) | {f"{p}self_attn.{x}_norm.weight": [32] for x in "qk"} | {f"{p}mlp.gate.weight": [n, HIDDEN]}
        shapes |= {f"{p}mlp.experts.gate_up_proj": [n, 2 * ffn, HIDDEN], f"{p}mlp.experts.down_proj": [n, HIDDEN, ffn]}
        changes = {"hidden_size": HIDDEN, "moe_intermediate_size": ffn, "num_local_experts": n, "num_hidden_layers": 1, "num_attention_heads": 16,
                   "num_key_value_heads": 16, "head_dim": 32, "vocab_size": 512, "tie_word_embeddings": False}
        self.check("qwen3-vl-moe", changes, shapes, 2 * 2 * ffn * HIDDEN)


if __name__ == "__main__":
    unittest.main()
