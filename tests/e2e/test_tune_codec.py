"""`tune codec` measures whether KV in fewer bits gives the same answers; `--kv-codec auto` goes by its file."""
import json
import unittest

from program import MODEL, ProgramTest, run

WORDS = "invoice total paid unpaid shipping date customer street number page screen".split()


class TuneCodec(ProgramTest):
    def questions(self, n, n_words):
        texts = (" ".join(WORDS[(i * k + k // 7) % len(WORDS)] for k in range(n_words)) for i in range(1, n + 1))
        return self.write("questions.jsonl", "".join(json.dumps({"question": text}) + "\n" for text in texts))

    def plan(self, folder, **changes):
        good = {"tokens": 2400, "changed": 6, "kl": 0.0012}
        plan = {"format": 1, "model": json.loads((MODEL / "reuse_plan.json").read_text())["model"], "weights": "dense", "dtype": "bf16", "margin": 0.01,
                "codec": "int8", "evidence": good, "floor": {"avx2": good}, "refused": {"int4": good | {"changed": 90}}}
        (folder / "kv_codec.json").write_text(json.dumps(plan | changes))

    def codec(self, model, *flags):
        """The codec of an answer's KV, and what the command said beside it."""
        p = run("run", "-m", model, "--dtype", "bf16", "--json", "--max-tokens", "1", *flags, "Total?")
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)["kv"]["codec"], p.stderr

    def test_measures_and_is_followed(self):
        model = self.copy_model()
        tune = ("tune", "codec", "-m", model, "--dtype", "bf16", "--max-tokens", "8", "--tokens", "2000", "--data")
        p = run(*tune, self.questions(6, 130))
        self.assertEqual(p.returncode, 0, p.stderr)
        lines = p.stdout.splitlines()
        codecs = ("int8", "k8v4", "int4")
        for codec, line in zip(codecs, lines):
            self.assertRegex(line, rf"^{codec}: \d+ of \d+ likeliest tokens stayed the same, at most .* change \(95 %\), .* may; mean divergence .* may: (not )?within the noise$")
        plan = json.loads((model / "kv_codec.json").read_text())
        self.assertEqual(lines[3], f"--kv-codec auto is {plan['codec']} for this model and these weights ({model / 'kv_codec.json'})")
        self.assertTrue({"chunks of 100", "batches of 3"} <= set(plan["floor"]))
        within = [codec for codec, line in zip(codecs, lines) if line.endswith(": within the noise")]
        self.assertEqual(set(plan["refused"]), set(codecs) - set(within))
        self.assertEqual(plan["codec"], within[-1] if within else "bf16")
        self.assertEqual(self.codec(model)[0], plan["codec"])
        self.fails(*tune, self.questions(1, 130), says=["tokens read codes, in 1 texts, and 2000 are needed", "more questions"])
        p = run(*tune, self.questions(1, 900))
        self.assertEqual(p.returncode, 2)
        self.assertRegex(p.stderr, "^question 1 is left out: the prompt has .*\nvlcache: tune codec: 0 tokens read codes")
        self.fails(*tune, self.questions(3, 5), says=["0 tokens read codes", "prompts of more than 256 tokens"])

    def test_auto(self):
        model = self.copy_model()
        self.assertEqual(self.codec(model)[0], "bf16")
        self.assertIn("`vlcache tune codec` measures", self.ok("info", "-m", model, "--dtype", "bf16"))
        self.plan(model)
        self.assertEqual(self.codec(model)[0], "int8")
        self.assertEqual(self.codec(model, "--kv-codec", "bf16")[0], "bf16")
        codec, said = self.codec(model, "--kv", "static:capacity=400")
        self.assertEqual(codec, "bf16")
        lines = [{"prompt": "Total?"}, {"prompt": "Total?", "kv": "full"}, {"prompt": "Total?", "kv_codec": "auto"}, {"prompt": "Total?", "kv_codec": "int8"}]
        reserved, full, auto, named = self.lines_of("run", "-m", model, "--dtype", "bf16", "--kv", "static:capacity=400", "--max-tokens", "1", "--requests", "-",
                                                    stdin="".join(json.dumps(line) + "\n" for line in lines))
        self.assertEqual([line["kv"]["codec"] for line in (reserved, full, auto)], ["bf16", "int8", "bf16"])
        self.assertIn("reserves slots of values, which cannot become int8", named["error"])
        self.assertIn("is kept as values: it reserves its slots", said)
        info = ("info", "-m", model, "--dtype", "bf16")
        self.assertRegex(self.ok(*info), r"--kv-codec auto +int8: 2394 of 2400 likeliest tokens stayed the same")
        self.assertEqual(self.json(*info, "--json")["kv_codec"], "int8")

    def test_an_evaluation_is_of_one_codec(self):
        """A folder of results is not continued once `auto` is another codec."""
        model = self.copy_model()
        ask = ("eval", "-m", model, "--dtype", "bf16", "--data", MODEL / "demo/questions.jsonl", "--samples", "1", "--kv", "streaming", "--kv-budget", "0.5", "--max-tokens", "1", "-o", self.folder / "out")
        self.ok(*ask)
        self.ok(*ask)
        self.plan(model)
        self.fails(*ask, says="holds results of other settings")
        self.ok(*ask, "--kv-codec", "auto", "--restart")

    def test_a_file_that_is_not_followed(self):
        model = self.copy_model()
        path = str(model / "kv_codec.json")
        for changes, says in ((dict(model="0" * 64), "another model"), (dict(weights="int4"), "other weights (int4) than these (dense)"), (dict(dtype="f32"), "in f32"),
                              (dict(codec="int7"), 'codec: expected one of f32, bf16, int8, int4, k8v4, found "int7"'), (dict(format=2), "format"),
                              (dict(evidence={"tokens": 2400, "changed": 90, "kl": 0.1}), "permits no codes: int8: 2310 of 2400"), (dict(floor=[]), "floor")):
            self.plan(model, **changes)
            codec, said = self.codec(model)
            self.assertEqual(codec, "bf16")
            self.assertEqual(said.count("kv_codec.json is not followed"), 1, said)
            self.assertIn(says, said)
            self.assertIn(path, said)
        (model / "kv_codec.json").write_text("{")
        self.assertEqual(self.codec(model)[0], "bf16")
        self.assertRegex(self.ok("info", "-m", model, "--dtype", "bf16"), r"--kv-codec auto +bf16; not followed: ")


if __name__ == "__main__":
    unittest.main()
