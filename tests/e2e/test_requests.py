"""`vlcache run --requests`: clients that wait, Ctrl-C, lines that are no requests, images in messages."""
import json
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import zlib

from program import MODEL, PAGE, VLCACHE, ProgramTest, run

OTHER = MODEL / "demo/table.png"
QUESTION = "What is the TOTAL?"


def white_png(side):
    """A grey image of side x side that is a small file."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(b"\0" + b"\xff" * side) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class Requests(ProgramTest):
    def lines(self, requests, *args, **kwargs):
        text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests)
        return self.lines_of("run", "-m", MODEL, "--requests", "-", "--temperature", "0", "--max-tokens", "3", *args, stdin=text, **kwargs)

    def start(self, *args):
        p = subprocess.Popen([VLCACHE, "run", "-m", str(MODEL), "--requests", "-", "--max-tokens", "2", *args], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for stream in (p.stdin, p.stdout, p.stderr):
            self.addCleanup(stream.close)
        self.addCleanup(p.kill)
        return p

    def ask(self, p, i):
        p.stdin.write(json.dumps({"id": i, "prompt": "Hello"}) + "\n")
        p.stdin.flush()

    def test_a_client_that_waits_for_each_answer(self):
        p = self.start("--batch", "4")
        for i in range(3):
            self.ask(p, i)
            self.assertEqual(json.loads(p.stdout.readline())["id"], i)
        p.stdin.close()
        self.assertEqual(p.wait(timeout=60), 0)

    def test_ctrl_c_while_reading(self):
        p = self.start()
        self.ask(p, 0)
        self.assertTrue(p.stdout.readline())
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(timeout=60), 130)

    def test_invalid_lines(self):
        deep = "[" * 100000 + "]" * 100000
        out = self.lines(['{"id": 1, "prompt": "x", "images": "\\u0000"}', '{"id": %s, "prompt": "x"}' % deep,
                          {"id": 3, "prompt": "x", "images": ["a\0b"]}, {"id": 4, "prompt": "Hello"}], "--batch", "4")
        self.assertEqual([r["id"] for r in out], [1, None, 3, 4])
        self.assertIn("NUL", out[0]["error"])
        self.assertIn("256", out[1]["error"])
        self.assertIn("NUL", out[2]["error"])
        self.assertNotIn("error", out[3])

    def test_lines_of_a_batch(self):
        def line(custom_id, body, url="/v1/chat/completions"):
            return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "gpt-4o-mini", **body}}
        image = {"type": "image_url", "image_url": {"url": PAGE.as_uri()}}
        ask = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
        out = self.lines([line("a", {"messages": ask, "max_tokens": 20, "n": 2}), {"id": 2, "prompt": QUESTION, "images": str(PAGE), "max_tokens": 20},
                          line("c", {"messages": [{"role": "user", "content": "x"}], "best_of": 3}), line("d", {}, "/v1/embeddings"),
                          line("e", {"input": QUESTION, "max_output_tokens": 3}, "/v1/responses"), line("f", {"prompt": "The total", "max_tokens": 3}, "/v1/completions"),
                          line("g", {"max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}, "https://api.anthropic.com/v1/messages"),
                          {**line("h", {}), "priority": 1}], "--batch", "4")
        self.assertEqual([r.get("custom_id", r.get("id")) for r in out], ["a", 2, "c", "d", "e", "f", "g", "h"])
        first = out[0]["response"]
        self.assertEqual((first["status_code"], out[0]["error"], first["body"]["object"]), (200, None, "chat.completion"))
        for choice in first["body"]["choices"]:
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (out[1]["text"], "stop"))
        self.assertEqual(len(first["body"]["choices"]), 2)
        for failed, says in ((out[2], "best_of"), (out[3], "url"), (out[7], "priority")):
            self.assertEqual(failed["response"]["status_code"], 400)
            self.assertIn(says, failed["error"]["message"])
            self.assertEqual(failed["response"]["body"]["error"]["message"], failed["error"]["message"])
        self.assertEqual([out[i]["response"]["body"].get("object", out[i]["response"]["body"].get("type")) for i in (4, 5, 6)], ["response", "text_completion", "message"])

    def test_rules_for_tokens(self):
        """The checkpoint's, to which a line's own are preferred; keys that are not applied are named."""
        model = self.copy_model()
        config = json.loads((model / "generation_config.json").read_text())
        (model / "generation_config.json").write_text(json.dumps({**config, "stop_strings": ["435"], "num_beams": 4, "suppress_tokens": "x"}))
        ask = {"prompt": QUESTION, "images": [str(PAGE)], "max_tokens": 20}
        lines = [ask, {**ask, "stop": []}, {**ask, "stop": [], "bad_words": ["TOTAL", "435"]}, {**ask, "stop": [], "no_repeat_ngram_size": 1}]
        p = run("run", "-m", model, "--requests", "-", "--temperature", "0", stdin="".join(json.dumps(line) + "\n" for line in lines))
        self.assertIn("generation_config.json: not applied: suppress_tokens (not a list of token ids), num_beams\n", p.stderr)
        stopped, whole, without, once = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertIn("435.75", whole["text"])
        self.assertEqual((stopped["text"], stopped["finish_reason"]), (whole["text"].split("435")[0], "stop"))
        for word in ("TOTAL", "435"):
            self.assertNotIn(word, without["text"])
        self.assertEqual(len(set(once["token_ids"])), len(once["token_ids"]))

    def test_answers_keep_to_a_schema(self):
        schema = {"type": "object", "properties": {"total": {"type": "number"}, "city": {"enum": ["LISBON", "OSLO"]}}, "required": ["total", "city"], "additionalProperties": False}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "schema.json"
            path.write_text(json.dumps(schema))
            for text in (self.ok("run", "-m", MODEL, "-i", PAGE, QUESTION, "-n", "200", "--json-schema", path), self.lines([{"prompt": QUESTION}], "-n", "200", "--json-schema", path)[0]["text"]):
                self.assertEqual(list(json.loads(text)), ["total", "city"])
            out = self.lines([{"prompt": QUESTION, "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "yes"}}}}, {"prompt": QUESTION, "response_format": {"type": "text"}},
                              {"prompt": QUESTION, "response_format": {"type": "xml"}}], "-n", "200", "--json-schema", path)
            self.assertEqual(out[0]["text"], '"yes"')
            self.assertNotIn("{", out[1]["text"])
            self.assertIn("response_format.type", out[2]["error"])
            out = self.lines([{"prompt": QUESTION, "response_format": None}], "-n", "200", "--json-schema", path)  # null is not set
            self.assertEqual(list(json.loads(out[0]["text"])), ["total", "city"])
            path.write_text('{"type": "array", "uniqueItems": true}')
            self.fails("run", "-m", MODEL, "Hello", "--json-schema", path, says="uniqueItems")
            path.write_text("{")
            self.fails("run", "-m", MODEL, "Hello", "--json-schema", path, says="schema.json")

    def test_seeds_of_64_bits(self):
        most = 2**64 - 1
        out = self.lines([{"prompt": "Hello"}, {"prompt": "Hello", "seed": most}, {"prompt": "Hello", "seed": 2**64}], "--seed", most,
                         "--temperature", "2", "--ignore-eos")
        self.assertEqual(out[0]["token_ids"], out[1]["token_ids"])
        self.assertIn("seed", out[2]["error"])

    def test_images_with_and_without_a_path_keep_their_order(self):
        text = {"type": "text", "text": QUESTION}
        own = {"type": "image", "image": str(PAGE)}
        bare = {"type": "image"}
        mixed, swapped, named, missing = self.lines([
            {"messages": [{"role": "user", "content": [bare, own, text]}], "images": [str(OTHER)]},
            {"messages": [{"role": "user", "content": [own, bare, text]}], "images": [str(OTHER)]},
            {"prompt": QUESTION, "images": [str(OTHER), str(PAGE)]},
            {"messages": [{"role": "user", "content": [bare, bare, text]}], "images": [str(OTHER)]}], "--logprobs", "0", "--dtype", "f32", "--reuse", "off")
        logprobs = [[t["logprob"] for t in r["logprobs"]] for r in (mixed, swapped, named)]
        self.assertEqual(logprobs[0], logprobs[2])
        self.assertNotEqual(logprobs[0], logprobs[1])
        self.assertIn("images", missing["error"])

    def test_a_repeated_image_is_not_encoded_again(self):
        asked = [{"prompt": QUESTION, "images": [str(p)], "system": f"Be brief {i}."} for i, p in enumerate((PAGE, OTHER, PAGE))]
        asked.append({"prompt": QUESTION, "images": [str(OTHER), str(PAGE)]})
        encoders = {}
        for ram in ("1GiB", "0", "1KiB"):  # a kilobyte holds nothing
            answers = self.lines(asked, "--cache-ram", ram)
            encoders[ram] = [[i["encoder"] for i in a["cache"]["images"]] for a in answers]
            if ram == "1GiB":
                expected = [a["token_ids"] for a in answers]
            self.assertEqual([a["token_ids"] for a in answers], expected)
            hashes = [[i["hash"] for i in a["cache"]["images"]] for a in answers]
            self.assertEqual(hashes[0], hashes[2])
            self.assertEqual(hashes[3], hashes[1] + hashes[0])
            self.assertNotEqual(hashes[0], hashes[1])
        self.assertEqual(encoders["1GiB"], [["computed"], ["computed"], ["hit"], ["hit", "hit"]])
        self.assertEqual(encoders["0"], [["computed"], ["computed"], ["computed"], ["computed", "computed"]])
        self.assertEqual(encoders["1KiB"], encoders["0"])

    def test_repeated_images_are_not_recomputed(self):
        ask = {"prompt": QUESTION, "images": [str(PAGE)]}
        prefixed = {"prompt": QUESTION, "images": [str(PAGE)], "system": "Please answer."}
        two = {"prompt": QUESTION, "images": [str(OTHER), str(PAGE)], "system": "Look."}
        requests = [ask, prefixed, two, {**two, "images": two["images"][::-1], "system": "Read."}, {**two, "reuse": "off"}, {**ask, "reuse": "vlcash"}]
        def images(reuse, *more):
            answers = self.lines(requests, "--reuse", reuse, "--temperature", "0", *more)
            self.assertIn("did you mean 'vlcache'", answers[-1]["error"])
            self.assertEqual({i["source"] for i in answers[4]["cache"]["images"]}, {"computed"})
            self.assertEqual({i["encoder"] for i in answers[4]["cache"]["images"]}, {"computed"})
            return answers, [[(i["source"], i["recomputed_tokens"], i["encoder"], i["reason"]) for i in a["cache"]["images"]] for a in answers[:4]]

        first, loaded = ("computed", 256, "computed", "first use"), ("ram", 0, "skipped", "")
        answers, found = images("static:r=0")
        # the other page comes first after no reused one, and is there from then on
        self.assertEqual(found, [[first], [loaded], [first, loaded], [loaded, loaded]])
        self.assertEqual(answers[1]["text"], answers[0]["text"])
        _, found = images("static:r=0.25")
        self.assertEqual(found[3], [("ram", 64, "hit", "")] * 2)
        # all of it computed is what a prompt by itself gives
        plain, found = images("off")
        self.assertEqual(found[3], [("computed", 256, "computed", "reuse is off")] * 2)
        whole, found = images("static:r=1")
        self.assertEqual(found[3], [("computed", 256, "hit", "the plan computes all of it")] * 2)
        self.assertEqual([a["token_ids"] for a in whole[:4]], [a["token_ids"] for a in plain[:4]])
        # no room for it: as if it had never been there
        small, found = images("static:r=0", "--cache-ram", "100KiB")
        self.assertEqual(found[3], [("computed", 256, "computed", "its KV is larger than the cache")] * 2)
        self.assertEqual([a["token_ids"] for a in small[:4]], [a["token_ids"] for a in plain[:4]])

    def test_an_image_of_concurrent_requests_is_computed_once(self):
        ask = {"prompt": QUESTION, "images": [str(PAGE)]}
        answers = self.lines([ask, {**ask, "reuse": "off"}, {**ask, "prompt": "What is the TAX?"}, {**ask, "system": "Read."}],
                             "--reuse", "static:r=0", "--batch", "4")
        self.assertEqual([a["cache"]["images"][0]["source"] for a in answers], ["computed", "computed", "prefix", "ram"])

    def test_kv_after_a_reused_image_is_not_cached_as_exact(self):
        two = {"prompt": QUESTION, "images": [str(PAGE), str(OTHER)], "system": "Look."}
        exact = {**two, "reuse": "exact"}
        requests = [{"prompt": QUESTION, "images": [str(PAGE)]}, two, two, exact, exact, {**two, "system": "Read."}]
        answers = self.lines(requests, "--reuse", "static:r=0")
        sources = [[i["source"] for i in a["cache"]["images"]] for a in answers[1:]]
        # the KV after a reused image is found only by prompts that reuse that image in the same way
        self.assertEqual(sources, [["ram", "computed"], ["prefix", "prefix"], ["computed", "computed"], ["prefix", "prefix"], ["ram", "computed"]])
        for a, reason in ((answers[1], "no exact origin"), (answers[5], "computed by itself, then reused")):
            self.assertEqual(a["cache"]["images"][1]["reason"], reason)
        self.assertLess(answers[3]["cache"]["prefix_tokens"], 64)
        self.assertEqual(answers[1]["token_ids"], answers[2]["token_ids"])
        off = self.lines([{**two, "reuse": "off"}])
        self.assertEqual([answers[3]["token_ids"], answers[4]["token_ids"]], [off[0]["token_ids"]] * 2)

    def test_common_prefixes_are_computed_once(self):
        ask = lambda text, *images: {"prompt": text, "images": [str(i) for i in images]}
        requests = [ask(QUESTION, PAGE), ask(QUESTION, PAGE), ask("What is the TAX?", PAGE), ask(QUESTION, OTHER), ask(QUESTION, OTHER, PAGE),
                    ask("What is the TAX?", OTHER, PAGE), ask(QUESTION, PAGE, OTHER)]
        flags = ("--dtype", "f32")
        plain = self.lines(requests, *flags, "--reuse", "off")
        for more in (("--reuse", "exact"), ("--reuse", "exact", "--batch", "3"), ("--reuse", "exact", "--cache-ram", "1MiB"), ("--cache-ram", "0")):
            answers = self.lines(requests, *flags, *more)
            self.assertEqual([a["token_ids"] for a in answers], [a["token_ids"] for a in plain], more)
            prefix = [a["cache"]["prefix_tokens"] for a in answers]
            if len(more) == 2 and more[0] == "--reuse":
                n = [a["tokens"]["prompt"] for a in answers]
                self.assertEqual(prefix[0], 0)
                self.assertEqual(prefix[1], n[1] - 1)  # the last token is computed, for its logits
                self.assertGreater(prefix[2], 262)
                self.assertLess(prefix[3], 16)  # another image
                self.assertGreater(prefix[4], 256)
                self.assertGreater(prefix[5], 512)
                self.assertGreater(prefix[6], 256)
                totals = answers[-1]["caches"]["prefix"]
                self.assertEqual((totals["hits"] + totals["misses"], totals["tokens"]), (7, sum(prefix)))
            if more[-1] == "0":
                self.assertEqual(prefix, [0] * 7)

    def test_each_line_has_its_codec_of_kv(self):
        long = {"prompt": "Which of these is the total? " * 40}
        body = {"messages": [{"role": "user", "content": long["prompt"]}], "max_tokens": 2, "vlcache": {"kv_codec": "int8"}}
        batch = [{"custom_id": path, "method": "POST", "url": path, "body": body} for path in ("/v1/chat/completions", "/v1/messages")]
        coded, plain, again, unknown, typed, reserved, *batched = self.lines(
            [{**long, "kv_codec": "int8"}, long, {**long, "kv_codec": "int8"}, {**long, "kv_codec": "int7"}, {**long, "kv_codec": 8}, {**long, "kv": "static", "kv_codec": "int8"}, *batch])
        for line in batched:
            kv = line["response"]["body"]["vlcache"]["kv"]
            self.assertEqual((kv["codec"], kv["coded_bytes_read"] > 0), ("int8", True), line)
        self.assertEqual([a["kv"]["codec"] for a in (coded, plain, again)], ["int8", "bf16", "int8"])
        self.assertEqual([a["kv"]["coded_bytes_read"] > 0 for a in (coded, plain)], [True, False])
        self.assertEqual(list(plain["kv"]["bytes_by_codec"]), ["bf16"])
        self.assertEqual((again["token_ids"], again["cache"]["prefix_tokens"] > 700), (coded["token_ids"], True))
        self.assertIn("kv_codec: unknown KV codec 'int7'; allowed are", unknown["error"])
        self.assertIn("kv_codec: expected a string, found 8", typed["error"])
        self.assertIn("KV policy static reserves slots of values, which cannot become int8", reserved["error"])

    def test_compressed_prompts_are_cached_only_on_request(self):
        ask = {"prompt": QUESTION, "images": [str(PAGE)], "kv": "snapkv:w=4", "kv_budget": 0.3}
        for more, found in (((), [0, 0]), (("--cache-exact",), [0, 256])):
            answers = self.lines([ask, ask], "--reuse", "exact", "--dtype", "f32", *more)
            self.assertEqual([a["cache"]["prefix_tokens"] for a in answers], found)
            self.assertEqual(answers[0]["token_ids"], answers[1]["token_ids"])
            self.assertEqual(answers[0]["kv"]["slots"], answers[1]["kv"]["slots"])

    def test_explain(self):
        p = run("run", "-m", MODEL, "--requests", "-", "--explain", "--reuse", "vlcache", stdin=(json.dumps({"prompt": QUESTION, "images": [str(PAGE)]}) + "\n") * 2)
        self.assertRegex(p.stderr, r"prompt: 0 of \d+ tokens were found, \d+ computed \(no cached prompt continues like this\)\nimage 1: 256 tokens computed: first use; encoded\nsince the start: 0 of ")
        self.assertRegex(p.stderr, r"prompt: 2\d\d of \d+ tokens were found \(2\d\d in memory; about \d+ ms saved\), 1 computed\nimage 1: 256 tokens found with the prompt\nsince the start: 2\d\d of ")

    def test_policies_that_need_the_whole_prompt_skip_reuse(self):
        ask = {"prompt": QUESTION, "images": [str(PAGE)]}
        answers = self.lines([ask, {**ask, "kv": "h2o", "kv_budget": 0.5}, {**ask, "kv": "snapkv", "kv_budget": 0.5}, {**ask, "kv": "streaming"}],
                             "--reuse", "static:r=0")
        self.assertIn("needs the attention of every prompt token", answers[1]["error"])
        self.assertEqual(answers[2]["cache"]["images"][0]["source"], "prefix")
        self.assertIn("its own way", answers[3]["error"])
        text, = self.lines([{"prompt": "Hello", "kv": "h2o", "kv_budget": 0.9}], "--reuse", "static:r=0")
        self.assertEqual(text["cache"]["images"], [])

    def test_a_replaced_file_is_another_image(self):
        name = self.folder / "page.png"
        p = self.start("--temperature", "0", "--reuse", "static:r=0")
        found = []
        for source in (PAGE, OTHER, PAGE):
            shutil.copyfile(source, name)
            p.stdin.write(json.dumps({"prompt": QUESTION, "images": [str(name)]}) + "\n")
            p.stdin.flush()
            image = json.loads(p.stdout.readline())["cache"]["images"][0]
            found.append((image["source"], image["encoder"]))
        p.stdin.close()
        self.assertEqual(p.wait(timeout=60), 0)
        self.assertEqual(found, [("computed", "computed"), ("computed", "computed"), ("prefix", "skipped")])

    def test_many_image_marks_are_read_quickly(self):
        out, = self.lines([{"prompt": "<image:" * 100000 + ">" + "<image:x>", "images": [str(PAGE)]}])
        self.assertIn("context is", out["error"])

    def test_a_request_without_memory_does_not_end_other_requests(self):
        (self.folder / "huge.png").write_bytes(white_png(13000))  # 500 MB as RGB
        limit = 1000 << 20
        text = "".join(json.dumps({"prompt": QUESTION, "images": [str(image)]}) + "\n" for image in (PAGE, self.folder / "huge.png", PAGE))
        p = subprocess.run([VLCACHE, "run", "-m", str(MODEL), "--requests", "-", "--max-tokens", "2", "--batch", "3", "--kv-memory", "0.1"],
                           input=text, capture_output=True, text=True, timeout=120,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(p.returncode, 1, p.stderr)
        first, huge, last = (json.loads(line) for line in p.stdout.splitlines())
        self.assertIn("out of memory", huge["error"])
        self.assertEqual(first["token_ids"], last["token_ids"])

    def test_conflicting_flags(self):
        self.fails("run", "-m", MODEL, "-i", PAGE, "--requests", "-", stdin="", says=["-i", "--requests"])
        self.fails("run", "-m", MODEL, "--requests", self.folder, "--reuse", "exact", says=str(self.folder))
        self.assertEqual(run("run", "-m", MODEL, "--requests", "-", stdin="\n\n").stdout, "")
