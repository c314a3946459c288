"""`vlcache run`: answers, JSON, files of requests, modes, batches, stops."""
import json

from program import MODEL, PAGE, ProgramTest, run

ASK = ("run", "-m", MODEL, "-i", PAGE, "--max-tokens", "24", "--temperature", "0")
QUESTION = "What is the TOTAL?"


class Run(ProgramTest):
    def test_prints_the_answer_alone_and_a_summary(self):
        p = run(*ASK, QUESTION)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertTrue(p.stdout.endswith("\n") and p.stdout.strip())
        for part in ("vision", "first token", "/s", "KV"):
            self.assertIn(part, p.stderr)

    def test_json_has_every_figure(self):
        r = self.json(*ASK, "--json", QUESTION)
        self.assertEqual(r["text"].lstrip(), self.ok(*ASK, QUESTION)[:-1])
        self.assertEqual(r["tokens"]["vision"], 256)
        self.assertEqual(r["tokens"]["generated"], len(r["token_ids"]))
        self.assertIn(r["finish_reason"], ("stop", "length"))
        for key in ("load", "vision", "prefill", "ttft", "decode"):
            self.assertGreaterEqual(r["timings_ms"][key], 0)
        config = json.loads((MODEL / "config.json").read_text())["text_config"]
        slots = r["kv"]["slots"]
        self.assertEqual([len(layer) for layer in slots], [config["num_key_value_heads"]] * config["num_hidden_layers"])
        n = r["tokens"]["prompt"] + r["tokens"]["generated"] - 1  # the last token's K and V are never needed
        self.assertEqual(slots[0], [n] * len(slots[0]))
        self.assertGreaterEqual(r["kv"]["peak_bytes"], r["kv"]["bytes"])

    def test_a_codec_of_kv_reads_codes(self):
        long = "Which of these is the total? " * 40
        of = lambda question, *more: self.json("run", "-m", MODEL, "--max-tokens", "2", "--temperature", "0", "--ignore-eos", "--json", *more, question)["kv"]
        coded, plain = of(long, "--kv-codec", "int8"), of(long)
        self.assertGreater(plain["slots"][0][0], 700)
        self.assertEqual((coded["codec"], plain["codec"]), ("int8", "bf16"))
        self.assertGreater(coded["coded_bytes_read"], 0)
        self.assertGreater(coded["bytes_by_codec"]["int8"], 0)
        self.assertEqual(sum(coded["bytes_by_codec"].values()), coded["bytes"])
        self.assertLess(coded["bytes"], plain["bytes"])
        self.assertEqual((plain["coded_bytes_read"], plain["bytes_by_codec"]), (0, {"bf16": plain["bytes"]}))
        self.assertNotIn("not_coded", coded)
        short = of("Total?", "--kv-codec", "int8")
        self.assertEqual((short["codec"], short["coded_bytes_read"], short["bytes_by_codec"]["int8"]), ("int8", 0, 0))
        self.assertIn("no head held more than 256 tokens", short["not_coded"])

    def test_stop_token_is_reported_but_not_shown(self):
        r = self.json(*ASK, "--json", QUESTION)
        if r["finish_reason"] == "stop":
            eos = json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"]
            self.assertEqual(r["token_ids"][-1], eos)
            self.assertNotIn("</s>", r["text"])
        longer = self.json(*ASK, "--json", "--ignore-eos", QUESTION)
        self.assertEqual((longer["finish_reason"], longer["tokens"]["generated"]), ("length", 24))

    def test_stop_strings_and_tokens(self):
        whole = self.json(*ASK, "--json", QUESTION)
        text = whole["text"]
        self.assertGreater(len(text), 4)
        cut = self.json(*ASK, "--json", "--stop", text[2:4], QUESTION)
        self.assertEqual((cut["text"], cut["finish_reason"]), (text[: text.index(text[2:4])], "stop"))
        first = self.json(*ASK, "--json", "--stop-token", whole["token_ids"][1], QUESTION)
        self.assertEqual(first["token_ids"], whole["token_ids"][:2])

    def test_sampling_is_seeded(self):
        args = (*ASK, "--json", "--ignore-eos", "--temperature", "2")
        a, b, c = (self.json(*args, "--seed", seed, QUESTION)["token_ids"] for seed in (1, 1, 2))
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)

    def test_logprobs(self):
        r = self.json(*ASK, "--json", "--logprobs", "3", QUESTION)
        self.assertEqual(len(r["logprobs"]), len(r["token_ids"]))
        for entry, token in zip(r["logprobs"], r["token_ids"], strict=True):
            self.assertEqual(entry["token_id"], token)
            self.assertEqual(entry["top"][0]["token_id"], token)  # greedy: the best is the chosen one
            self.assertLessEqual(entry["logprob"], 0)

    def test_every_exact_mode_gives_the_same_tokens(self):
        args = (*ASK, "--dtype", "f32", "--json", QUESTION)
        full = self.json(*args)
        for mode in ("none", "static", "static:capacity=400", "streaming:window=2000"):
            other = self.json(*args, "--kv-mode", mode)
            self.assertEqual(other["token_ids"], full["token_ids"], mode)
            self.assertEqual(other["kv"]["mode"], mode.split(":")[0])
        self.assertEqual(self.json(*args, "--kv-mode", "none")["kv"]["bytes"], 0)

    def test_streaming_stays_within_its_capacity(self):
        r = self.json(*ASK, "--json", "--ignore-eos", "--kv-mode", "streaming:sinks=4,window=60", QUESTION)
        self.assertEqual(r["tokens"]["generated"], 24)
        self.assertTrue(all(n == 64 for layer in r["kv"]["slots"] for n in layer), r["kv"]["slots"])

    def test_an_evicting_policy_keeps_its_budget_in_every_head(self):
        full = self.json(*ASK, "--json", QUESTION)
        for budget, share in (("0.1", 0.1), ("0.5", 0.5), ("40", None)):
            r = self.json(*ASK, "--json", "--kv", "post_vision+uniform", "--kv-budget", budget, QUESTION)
            kept = int(share * r["tokens"]["prompt"] + 0.5) if share else 40
            expected = kept + r["tokens"]["generated"] - 1  # the last token's KV is never needed
            self.assertTrue(all(n == expected for layer in r["kv"]["slots"] for n in layer), (r["kv"]["slots"], expected))
            self.assertEqual(r["kv"]["mode"], "post_vision+uniform")
            self.assertLess(r["kv"]["bytes"], full["kv"]["bytes"])
        self.assertEqual(self.json(*ASK, "--json", "--kv-mode", "post_vision", "--kv-budget", "1", QUESTION)["token_ids"], full["token_ids"])
        self.fails(*ASK, "--kv", "full", "--kv-budget", "0.1", QUESTION, says="takes no KV budget")
        self.fails(*ASK, "--kv", "post_visoin", QUESTION, says=["post_visoin", "post_vision"])

    def test_chunks_and_threads_do_not_change_the_answer(self):
        args = (*ASK, "--dtype", "f32", "--json", QUESTION)
        whole = self.json(*args)["token_ids"]
        for extra in (("--prefill-chunk", "7"), ("--prefill-chunk", "100"), ("--threads", "1"), ("--backend", "ref"), ("--max-isa", "avx2")):
            self.assertEqual(self.json(*args, *extra)["token_ids"], whole, extra)

    def test_weights_are_quantised_while_they_are_loaded(self):
        args = (*ASK, "--dtype", "f32", "--json", QUESTION)
        dense = self.json(*args, "--weights", "dense")
        self.assertEqual(dense["weights"]["form"], "dense")
        self.assertEqual(self.json(*args, "--weights", "f32")["token_ids"], dense["token_ids"])
        last = dense["weights"]["bytes"]
        for form in ("int8", "int4+", "int4"):
            r = self.json(*args, "--weights", form)
            self.assertEqual(r["weights"]["form"], form)
            self.assertLess(r["weights"]["bytes"], last)
            last = r["weights"]["bytes"]
            # The same weights, decoded by the formula: exact in f32.
            self.assertEqual(self.json(*args, "--weights", form, "--backend", "ref")["token_ids"], r["token_ids"], form)
            self.assertEqual(self.json(*args, "--weights", form, "--prefill-chunk", "7")["token_ids"], r["token_ids"], form)
        self.assertEqual(self.json(*args, "--weights", "int8")["token_ids"], dense["token_ids"])
        both = self.json(*args, "--weights", "int4", "--vision-weights", "int8")
        self.assertEqual(both["weights"]["vision_form"], "int8")
        self.assertLess(both["weights"]["bytes"], last)
        self.fails(*args, "--weights", "bf16", says=["--weights bf16", "f32", "--dtype bf16"])

    def test_images_are_placed_where_the_prompt_marks_them(self):
        other = MODEL / "demo/table.png"
        both = ("run", "-m", MODEL, "-i", PAGE, "-i", other, "--max-tokens", "4", "--json")
        plain = self.json(*both, QUESTION)
        self.assertEqual(plain["tokens"]["vision"], 512)
        named = self.json(*both, f"<image:2><image:1>{QUESTION}")
        swapped = self.json("run", "-m", MODEL, "-i", other, "-i", PAGE, "--max-tokens", "4", "--json", QUESTION)
        self.assertEqual(named["token_ids"], swapped["token_ids"])

    def test_raw_uses_the_prompt_unchanged(self):
        chat = self.json(*ASK, "--json", QUESTION)
        raw = self.json(*ASK, "--json", "--raw", f"<s>User: <image>\n{QUESTION}\nAssistant:")
        self.assertEqual(raw["token_ids"], chat["token_ids"])
        self.assertEqual(raw["tokens"], chat["tokens"])


class Requests(ProgramTest):
    def lines(self, requests, *args):
        text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests)
        return self.lines_of("run", "-m", MODEL, "--requests", self.write("requests.jsonl", text), "--temperature", "0", *args)

    def questions(self):
        q = [{"id": i, "prompt": text, "images": [str(PAGE)], "max_tokens": 12} for i, text in
             enumerate(["What is the TOTAL?", "What is the DATE?", "What is the NAME?", "Read the page."])]
        q.append({"id": "text", "prompt": "User: hello\nAssistant:", "raw": True, "max_tokens": 5})
        q.append({"id": None, "messages": [{"role": "user", "content": [{"type": "image", "image": str(PAGE)},
                                                                       {"type": "text", "text": "What is the TOTAL?"}]}], "max_tokens": 12})
        return q

    def test_answers_are_lines_in_order_for_any_batch_size(self):
        single = self.lines(self.questions(), "--dtype", "f32")
        self.assertEqual([r["id"] for r in single], [0, 1, 2, 3, "text", None])
        self.assertEqual(single[5]["token_ids"], single[0]["token_ids"])
        for batch in (2, 4, 16):
            batched = self.lines(self.questions(), "--dtype", "f32", "--batch", batch)
            self.assertEqual([r["token_ids"] for r in batched], [r["token_ids"] for r in single])
            self.assertEqual([r["kv"]["slots"] for r in batched], [r["kv"]["slots"] for r in single])

    def test_a_bad_line_does_not_stop_the_others(self):
        good = {"id": "good", "prompt": "What is the TOTAL?", "images": [str(PAGE)], "max_tokens": 3}
        bad = ["{not json", '{"id": "typo", "promt": "x"}', {"id": "missing", "prompt": "x", "images": ["nowhere.png"]},
               {"id": "both", "prompt": "x", "messages": []}, {"id": "zero", "prompt": "x", "max_tokens": 0},
               {"id": "count", "prompt": "<image>", "raw": True}, {"id": "number", "prompt": 3},
               {"id": "stop", "prompt": "x", "stop_token_ids": [2**31]}, {"id": "id", "prompt": "x", "stop_token_ids": 2}, "[" * 100000]
        for batch in (1, 8):
            out = self.lines([good, *bad, good], "--batch", batch)
            self.assertEqual(len(out), len(bad) + 2)
            self.assertEqual([("error" in r) for r in out], [False] + [True] * len(bad) + [False])
            self.assertEqual(out[0]["token_ids"], out[-1]["token_ids"])
            self.assertEqual([r["id"] for r in out[1:10]],
                             [None, "typo", "missing", "both", "zero", "count", "number", "stop", "id"])
            self.assertIn("promt", out[2]["error"])
            self.assertIn("nowhere.png", out[3]["error"])
            self.assertIn("stop_token_ids", out[8]["error"])

    def test_reserved_caches_wait_where_they_do_not_fit_together(self):
        questions = self.questions()[:4]
        alone = self.lines(questions)
        fixed = ("--kv", "static:capacity=400", "--batch", "4", "--kv-memory", "0.004")  # room for two
        self.assertEqual([r.get("text") for r in self.lines(questions, *fixed)], [r["text"] for r in alone])

    def test_memory_runs_out_in_a_batch_but_not_for_one(self):
        # Room for one request of 256 image tokens, not for four.
        out = self.lines(self.questions()[:4], "--batch", "4", "--kv-memory", "0.0015")
        self.assertTrue(all("error" not in r for r in out), out)
        out = self.lines(self.questions()[:2], "--kv-memory", "0.0001")
        self.assertTrue(all("KV cache is full" in r["error"] for r in out), out)
