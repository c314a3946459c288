"""Checkpoints that come quantised, in the commands that load them."""
import json
import shutil
import unittest

from program import ROOT, ProgramTest, run

FIXTURES, MODELS = ROOT / "tests/fixtures/quantised", ROOT / "tests/fixtures/models"


class Quantised(ProgramTest):
    def snapshot(self):
        """A vision model as users have it: the fixture beside the tokenizer of the model that it was made of."""
        folder = self.folder / "model"
        shutil.copytree(MODELS / "qwen2-vl-nested", folder)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(FIXTURES / "vlm-ct" / name, folder)
        return folder

    def test_answers_are_those_of_its_values(self):
        model = self.snapshot()
        case = json.loads((MODELS / "qwen2-vl-nested/case.json").read_text())
        args = ("run", "-m", model, "--raw", "-i", model / case["images"][0], "--max-tokens", "8", "--temperature", "0", "--json",
                "--dtype", "f32")
        answers = {form: self.json(*args, "--weights", form, case["prompt"]) for form in ("auto", "dense", "int8", "int4")}
        self.assertEqual(answers["auto"]["token_ids"], answers["dense"]["token_ids"])
        self.assertEqual(answers["auto"]["weights"]["form"], "auto")
        self.assertLess(answers["auto"]["weights"]["bytes"], 0.8 * answers["dense"]["weights"]["bytes"])
        plain = self.json(*args, case["prompt"])
        self.assertEqual(plain["token_ids"], answers["auto"]["token_ids"])
        self.assertEqual(plain["weights"], answers["auto"]["weights"])

    def test_info_says_what_becomes_of_them(self):
        out = self.ok("info", "-m", FIXTURES / "awq")
        self.assertIn("AWQ: 7 matrices, 7 kept as 4 bits g32 f16 zero", out)
        self.assertNotIn("activations", out)
        out = self.ok("info", "-m", FIXTURES / "fp8-blocks")
        self.assertIn("FP8 blocks: 6 matrices\n", out)
        self.assertIn("6 become bf16, 2.0 times the file's bytes", out)
        self.assertIn("--weights int8 or int4", out)
        self.assertIn("activations in 8 bits, as the checkpoint asks for, are not computed", out)
        out = self.ok("info", "-m", FIXTURES / "gptq-order")
        self.assertIn("GPTQ: 7 matrices, 7 kept as 8 bits g32 bf16\n", out)
        self.assertNotIn("become", out)
        parameters = [line for line in out.splitlines() if line.startswith("parameters")]
        for name in ("awq", "gptq-order", "ct-nvfp4", "ct-packed-zeros"):  # one model
            self.assertIn(parameters[0], self.ok("info", "-m", FIXTURES / name))
        out = self.ok("info", "-m", FIXTURES / "vlm-fp8")  # each stacked expert counts
        self.assertIn("FP8 blocks: 40 matrices\n", out)
        self.assertIn("40 become bf16, 1.6 times the file's bytes", out)

    def test_groups_in_any_order_stay_codes(self):
        folder = self.folder / "model"
        shutil.copytree(FIXTURES / "gptq", folder)
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        for name, tensor in json.loads(data[8:start]).items():
            if name.endswith("g_idx"):   # as act-order leaves it: groups of 32 inputs that are spread over all
                begin, end = (start + offset for offset in tensor["data_offsets"])
                n = (end - begin) // 4
                data[begin:end] = b"".join((k % (n // 32)).to_bytes(4, "little") for k in range(n))
        file.write_bytes(data)
        sorted_ones = {w["module"]: w for w in self.json("info", "-m", FIXTURES / "gptq", "--json")["weights"]}
        for w in self.json("info", "-m", folder, "--json")["weights"]:
            self.assertEqual(w["form"], sorted_ones[w["module"]]["form"])
            if w["form"].startswith("4 bits"):
                order = 4 * 8 * (160 if "down" in w["module"] else 64)   # bits
                self.assertAlmostEqual(w["bits_per_weight"], sorted_ones[w["module"]]["bits_per_weight"] + order / w["parameters"],
                                       places=2)

    def test_a_line_names_what_takes_more_than_its_file(self):
        folder = self.folder / "model"
        shutil.copytree(FIXTURES / "fp8-blocks", folder)
        p = run("bench", "-m", folder, "-p", "8", "-n", "1", "-r", "1", "--tokenizer", MODELS / "llama-gqa4")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("6 of 6 quantised matrices (FP8 blocks) are kept as bf16, in 2.0 times the file's bytes", p.stderr)
        self.assertNotIn("times the file's bytes", run("bench", "-m", folder, "-p", "8", "-n", "1", "-r", "1", "--tokenizer",
                                                       MODELS / "llama-gqa4", "--weights", "int8").stderr)

    def test_other_methods_are_refused_by_name(self):
        folder = self.folder / "model"
        shutil.copytree(FIXTURES / "awq", folder)
        config = json.loads((folder / "config.json").read_text())
        for method in ("bitsandbytes", "hqq", "torchao"):
            config["quantization_config"] = {"quant_method": method}
            (folder / "config.json").write_text(json.dumps(config))
            self.fails("info", "-m", folder, says=[f'quant_method "{method}" is not read', "--weights int8 or int4"])


if __name__ == "__main__":
    unittest.main()
