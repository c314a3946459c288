"""The other commands, help, flags from environment and file, and usage errors."""
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import xml.etree.ElementTree

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, run


def read_safetensors(path):
    """{name: (dtype, shape, values)} of f32 and i32 tensors."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, info in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            raw = data[8 + n + begin : 8 + n + end]
            out[name] = (info["dtype"], info["shape"], struct.unpack(f"<{len(raw) // 4}{'f' if info['dtype'] == 'F32' else 'i'}", raw))
    return out


class Commands(ProgramTest):
    def test_version_and_help(self):
        self.assertRegex(self.ok("--version"), r"^vlcache \d+\.\d+\.\d+\n$")
        self.assertIn("run", self.ok("--help"))
        for command in ("run", "chat", "logits", "tokenize", "detokenize", "info", "bench"):
            text = self.ok(command, "--help-all")
            self.assertIn("--", text)
            self.assertLessEqual(max(len(line) for line in text.splitlines() if "Example" not in line), 100)

    def test_help_of_long_commands_is_a_page(self):
        """The flags that matter first; all of them by --help-all, which is the same where none is left out."""
        def help_of(*args):  # 80 columns, as on a terminal of that size
            reader, writer = pty.openpty()
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
            process = subprocess.Popen([VLCACHE, *args], stdout=writer)
            os.close(writer)
            text = ""
            with contextlib.suppress(OSError):  # the end
                while data := os.read(reader, 65536):
                    text += data.decode()
            os.close(reader)
            self.assertEqual(process.wait(), 0, args)
            return text.replace("\r\n", "\n")
        flags = re.compile(r"^  (?:-\w, |    )(--[a-z-]+)", re.M)
        for command, matter in (("run", "model image max-tokens kv kv-budget cache-disk cache-ram kv-memory weights threads explain batch"),
                                ("chat", "model image kv session cache-disk threads"),
                                ("serve", "model host port api-keys kv kv-budget cache-disk cache-ram kv-memory weights threads parallel")):
            short, whole = help_of(command, "--help"), help_of(command, "--help-all")
            self.assertLessEqual(len(short.splitlines()), 60, command)
            self.assertLessEqual(max(map(len, (line for line in short.splitlines() if "Example" not in line))), 80, command)
            shown, known = flags.findall(short), flags.findall(whole)
            self.assertLessEqual({f"--{flag}" for flag in matter.split()}, set(shown))
            self.assertIn(len(shown), range(18, 22))
            self.assertLess(set(shown), set(known))
            left = f"vlcache {command} --help-all describes {len(known) - len(shown)} more flags."
            self.assertEqual(short.splitlines()[-1], left)
        for command in ((), ("info",), ("cache", "ls"), ("tune", "reuse")):
            self.assertEqual(self.ok(*command, "--help"), self.ok(*command, "--help-all"), command)
        self.assertEqual(self.ok(), self.ok("--help"))
        self.assertLessEqual(max(map(len, help_of().splitlines())), 80)

    def test_completions_know_every_flag(self):
        scripts = {shell: self.ok("completions", shell) for shell in ("bash", "zsh", "fish", "man")}
        commands = re.findall(r"^  ([a-z]+) {2}", self.ok("--help").split("\nCommands:\n")[1], re.M)
        self.assertGreater(len(commands), 13)
        n = 0
        for command in commands:
            for flag in re.findall(r"^  (?:-\w, |    )--([a-z-]+)", self.ok(command, "--help-all"), re.M):
                n += 1
                for shell, script in scripts.items():
                    name = {"fish": f"-l {flag}", "man": "\\-\\-" + flag.replace("-", "\\-")}.get(shell, f"--{flag}")
                    self.assertRegex(script, re.escape(name) + r"\b", (shell, command))
        self.assertGreater(n, 300)
        for line, found in ((["vlcache", "ru"], ["run"]), (["vlcache", "cache", ""], ["ls", "verify"]), (["vlcache", "run", "--max-t"], ["--max-tokens"]),
                            (["vlcache", "run", "--dtype", "b"], ["bf16"]), (["vlcache", "run", "-m", "doc"], ["docs"]), (["vlcache", "completions", "z"], ["zsh"])):
            asked = f"COMP_WORDS=({' '.join(map(repr, line))}); COMP_CWORD={len(line) - 1}; compopt() {{ :; }}; _vlcache; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            out = subprocess.run(["bash", "-c", scripts["bash"] + asked], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
            self.assertLessEqual(set(found), set(out), line)
            self.assertTrue(all(word.startswith(line[-1]) for word in out), (line, out))

    def test_help_of_every_flag_has_its_default(self):
        """Sentences as in docs/words.md: a capital at the beginning, and how it is without the flag unless that is an error."""
        def commands_of(command):
            known = self.ok(*command, "--help-all")
            found = re.findall(r"^  ([a-z]+) {2,}", known.split("\nCommands:\n")[1], re.M) if "\nCommands:\n" in known else []
            return [command, *(below for name in found for below in commands_of((*command, name)))]
        n = 0
        for command in commands_of(()):
            for head, text in re.findall(r"^  ((?:-\w, |    )--\S.*?|-h, --help)(?: {2,}|\n {30})(\S.*\n(?: {30}.*\n)*)", self.ok(*command, "--help-all"), re.M):
                n += 1
                self.assertRegex(text, r"^([A-Z]|config\.json)", (command, head))
                if " " in head.split("--")[-1]:  # a value
                    self.assertRegex(" ".join(text.split()), r"default|\[required", (command, head))
        self.assertGreater(n, 400)

    def test_usage_errors_exit_2(self):
        self.assertIn("vlcache COMMAND --help", self.ok())  # alone: the help
        config = self.write("flags.toml", "[run]\nmax-tokens = 5\n")
        for args, says in ((("--config", config), "expected a command, found none; --help-all lists all"), (("srve",), "did you mean 'serve'"),
                           (("run", "-m", MODEL, "--max-tokns", "1", "hi"), "did you mean '--max-tokens'?); --help-all lists all")):
            self.fails(*args, says=says)
        for args in (("nonsense",), ("run",), ("run", "-m", MODEL, "--max-tokens", "x", "hi"), ("run", "-m", MODEL, "--no-such-flag", "hi"),
                     ("run", "-m", MODEL), ("bench",), ("logits", "-m", MODEL, "hi")):
            self.assertEqual(run(*args).returncode, 2, args)

    def test_flags_from_environment_and_file(self):
        ask = ("run", "-m", MODEL, "-i", PAGE, "--json", "--ignore-eos", "What is the TOTAL?")
        self.assertEqual(self.json(*ask, env={"VLCACHE_MAX_TOKENS": "3"})["tokens"]["generated"], 3)
        config = self.write("flags.toml", "\ufeff[run]\nmax-tokens = 5\nkv-mode = \"static\"\n")
        r = self.json("--config", config, *ask)
        self.assertEqual((r["tokens"]["generated"], r["kv"]["mode"]), (5, "static"))
        self.assertEqual(self.json("--config", config, *ask, "--max-tokens", "2")["tokens"]["generated"], 2)

    def test_answers_do_not_depend_on_the_number_of_threads(self):
        ask = ("run", "-m", MODEL, "-i", PAGE, "--json", "--dtype", "f32", "What is the TOTAL?", "--threads")
        one = self.json(*ask, "1")["token_ids"]
        self.assertEqual(self.json(*ask, "3")["token_ids"], one)

    def test_thread_count_follows_cpu_affinity(self):
        if shutil.which("taskset") is None:
            self.skipTest("no taskset")
        cpu = min(os.sched_getaffinity(0))
        out = subprocess.run(["taskset", "-c", str(cpu), VLCACHE, "bench", "-m", MODEL, "-p", "4", "-n", "0", "-r", "1", "-o", "json"],
                             capture_output=True, text=True, check=True, timeout=120).stdout
        self.assertEqual({r["n_threads"] for r in json.loads(out)}, {1})

    def test_unknown_keys_of_a_file_are_named(self):
        for text, says in (("[run]\nmax-tokns = 5\n", "did you mean 'max-tokens'"), ("[rnu]\nmax-tokens = 5\n", "did you mean 'run'"), ("nothing = 1\n", "nothing"),
                           ("kv-budgte = 1\n", "did you mean 'kv-budget'")):
            self.fails("--config", self.write("flags.toml", text), "run", "-m", MODEL, "hi", says=["--config", says])
        self.fails("--config", self.folder / "no.toml", "run", "-m", MODEL, "hi", says=["vlcache: --config: ", "no.toml: no such file"])
        of_others = self.write("flags.toml", "[bench]\nbatch = [1, 2]\n[run]\nmax-tokens = 1\n")
        self.assertEqual(self.json("--config", of_others, "run", "-m", MODEL, "--json", "hi")["tokens"]["generated"], 1)

    def test_an_environment_variable_sets_one_flag(self):
        bench = ("bench", "-m", MODEL, "-p", "8", "-n", "0", "-r", "1")
        env = {"VLCACHE_BENCH_OUTPUT": "json", "VLCACHE_BENCH_BATCH": "1,2", "VLCACHE_THREADS": "1", "VLCACHE_LOGITS_OUTPUT": "x", "VLCACHE_RUN_BATCH": "7"}
        self.assertEqual([(r["n_seqs"], r["n_threads"]) for r in json.loads(self.ok(*bench, env=env))], [(1, 1), (2, 1)])
        names = {}
        for command in ("run", "chat", "logits", "tokenize", "detokenize", "info", "bench"):
            for head, text in re.findall(r"^  (?:-\w, |    )--([a-z-]+)((?:.*\n)(?: {30}.*\n)*)", self.ok(command, "--help-all"), re.M):
                if found := re.search(r"\((VLCACHE_[A-Z_]+)\)\n", text):
                    own = f"VLCACHE_{command}_{head}".upper().replace("-", "_")
                    shared = f"VLCACHE_{head}".upper().replace("-", "_")
                    self.assertIn(found[1], (own, shared))
                    names.setdefault(found[1], set()).add(command)
        self.assertGreater(len(names["VLCACHE_MODEL"]), 6)
        self.assertEqual(names["VLCACHE_BENCH_BATCH"], {"bench"})
        self.assertEqual(names["VLCACHE_RUN_BATCH"], {"run"})
        self.assertTrue({"VLCACHE_BATCH", "VLCACHE_OUTPUT", "VLCACHE_IMAGE"}.isdisjoint(names))

    def test_variables_that_are_no_flags(self):
        service = {"VLCACHE_SERVE_PORT": "tcp://10.96.0.7:8080", "VLCACHE_SERVE_SERVICE_HOST": "10.96.0.7", "VLCACHE_SERVE_PORT_8080_TCP": "tcp://10.96.0.7:8080"}
        p = run("serve", "-m", "/no/model", env=service)  # starts, as far as the model
        self.assertIn("/no/model", p.stderr)
        self.assertEqual([line for line in p.stderr.splitlines() if "VLCACHE" in line], ["vlcache: note: VLCACHE_SERVE_PORT is left out: Kubernetes sets it for a Service of this name"])
        self.assertEqual(run("policies", env=service).stderr, "")
        p = run("serve", env={"VLCACHE_PARALLEL": "2", "VLCACHE_SERVE_PARALLEL": "many", "VLCACHE_MODEL": "/no/model"})
        self.assertEqual(p.returncode, 2)
        self.assertIn("VLCACHE_PARALLEL is not the variable of a flag (did you mean 'VLCACHE_SERVE_PARALLEL'?)", p.stderr)
        self.assertIn("(set by VLCACHE_SERVE_PARALLEL)", p.stderr)
        self.assertIn("(set by VLCACHE_MODEL)", run("run", "hi", env={"VLCACHE_MODEL": "/no/model"}).stderr)

    def test_info_names_experts(self):
        for model, says in (("qwen3-vl-moe", "8 experts x 20 (3 for each token),"),
                            ("qwen3-vl-moe-dense", "5 experts x 20 (2 for each token) in 1 of 2 layers, MLP 72 in the others,"),
                            ("qwen3-vl-wide", ", MLP 64,")):
            self.assertIn(says, self.ok("info", "-m", ROOT / "tests/fixtures/models" / model))

    def test_a_tokenizer_of_another_folder(self):
        """nanoVLM's checkpoints name a tokenizer and bring none; extra tokens are added to it."""
        whole = ROOT / "tests/fixtures/models/nanovlm-first"
        model, other = self.folder / "model", self.folder / "tokenizer"
        shutil.copytree(whole, model)
        other.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.move(model / name, other / name)
        case = json.loads((whole / "case.json").read_text())
        ask = ("--dtype", "f32", "--raw", case["prompt"], "-i", whole / "image-0.png", "--max-tokens", len(case["greedy"]), "--ignore-eos", "--json")
        missing = "hf download HuggingFaceTB/cosmo2-tokenizer) and give its folder with --tokenizer DIR"
        self.fails("run", "-m", model, *ask, says=missing)
        self.fails("serve", "-m", model, "--port", "0", says=missing)
        self.assertIn("architecture     nanovlm", self.ok("info", "-m", model))
        for args in (("-m", whole), ("-m", model, "--tokenizer", other)):
            out = self.json("run", *args, *ask)
            self.assertEqual((out["token_ids"], out["tokens"]["prompt"]), (case["greedy"], len(case["input_ids"])))
            self.assertEqual(self.json("tokenize", *args, "<|image|>"), [json.loads((model / "config.json").read_text())["lm_vocab_size"]])
        chat = self.json("run", "-m", model, "--tokenizer", other, "--dtype", "f32", "-i", whole / "image-0.png", "--max-tokens", 1, "--json",
                         case["chat"]["messages"][0]["content"][1]["text"])
        self.assertEqual(chat["tokens"]["prompt"], len(case["chat"]["input_ids"]))
        (self.folder / "empty").mkdir()
        self.fails("run", "-m", model, "--tokenizer", self.folder / "empty", *ask, says="tokenizer.json: no such file")

    def test_tokenize_round_trip(self):
        ids = self.json("tokenize", "-m", MODEL, "What is the TOTAL?")
        self.assertTrue(all(isinstance(i, int) for i in ids))
        lines = ["What is the TOTAL?", "", "<image>\nü 12.50</s>", "tab\tand\r\nnewline", "日本 🎉"]
        file = self.write("lines.jsonl", "".join(json.dumps(x) + "\n" for x in lines))
        out = self.ok("tokenize", "-m", MODEL, "--jsonl", file)
        self.assertEqual(json.loads(out.splitlines()[0]), ids)
        back = self.ok("detokenize", "-m", MODEL, stdin=out)
        self.assertEqual([json.loads(x) for x in back.splitlines()], lines)
        piped = self.ok("tokenize", "-m", MODEL, "--jsonl", "-", stdin=file.read_text())
        self.assertEqual(piped, out)

    def test_logits_agree_with_generation(self):
        out = self.folder / "logits.safetensors"
        prompt = "<s>User: <image>\nWhat is the TOTAL?\nAssistant:"
        self.ok("logits", "-m", MODEL, "--raw", prompt, "-i", PAGE, "-o", out)
        tensors = read_safetensors(out)
        dtype, (n, vocab), logits = tensors["logits"]
        self.assertEqual((dtype, tensors["token_ids"][:2]), ("F32", ("I32", [n])))
        self.assertEqual(sum(i == 3 for i in tensors["token_ids"][2]), 256)  # image tokens, expanded
        r = self.json("run", "-m", MODEL, "--raw", prompt, "-i", PAGE, "--max-tokens", "1", "--json", "--temperature", "0")
        last = logits[-vocab:]
        self.assertEqual(r["token_ids"][0], max(range(vocab), key=lambda i: last[i]))

    def test_logits_of_tokens_do_not_depend_on_the_chunk(self):
        files = [self.folder / f"{i}.safetensors" for i in range(2)]
        tokens = ",".join(str(10 + i % 50) for i in range(90))
        for file, chunk in zip(files, (512, 11), strict=True):
            self.ok("logits", "-m", MODEL, "--tokens", tokens, "--dtype", "f32", "--prefill-chunk", chunk, "-o", file)
        a, b = (read_safetensors(f)["logits"][2] for f in files)
        self.assertLess(max(abs(x - y) for x, y in zip(a, b, strict=True)), 1e-4 * max(map(abs, a)))

    def test_logits_of_the_last_tokens(self):
        tokens = ",".join(str(10 + i % 50) for i in range(30))
        tensors = {}
        for last in (0, 1, 13, 30, 31):  # chunks of 11: 13 tokens begin within one
            file = self.folder / f"{last}.safetensors"
            self.ok("logits", "-m", MODEL, "--tokens", tokens, "--prefill-chunk", 11, "--last", last, "-o", file)
            tensors[last] = read_safetensors(file)
        (_, (n, vocab), logits) = tensors[0]["logits"]
        self.assertEqual(n, 30)
        for last in (1, 13, 30, 31):
            self.assertEqual(tensors[last]["logits"][1], [min(last, n), vocab])
            self.assertEqual(tensors[last]["logits"][2], logits[-min(last, n) * vocab:])
            self.assertEqual(tensors[last]["token_ids"], tensors[0]["token_ids"])

    def test_info(self):
        out = self.ok("info", "-m", MODEL)
        for word in ("llava", "8 layers", "CLIP", "parameters", "KV cache", "workspace", "FLOPs per token"):
            self.assertIn(word, out)

    def test_info_lists_what_run_loads(self):
        info = self.json("info", "-m", MODEL, "--json", "--weights", "int4+", "--vision-weights", "int8", "--dtype", "bf16")
        ran = self.json("run", "-m", MODEL, "a", "--max-tokens", "1", "--json", "--weights", "int4+", "--vision-weights", "int8", "--dtype", "bf16")
        self.assertEqual((info["form"], info["vision_form"], info["weight_bytes"]), tuple(ran["weights"][k] for k in ("form", "vision_form", "bytes")))
        self.assertEqual(ran["weights"]["activations"], "int15")
        self.assertEqual(self.json("run", "-m", MODEL, "a", "--max-tokens", "1", "--json", "--dtype", "bf16")["weights"]["activations"], "bf16")
        matrices = info["weights"]
        self.assertLess(sum(m["bytes"] for m in matrices), info["weight_bytes"])
        down = next(m for m in matrices if m["module"].endswith("down_proj.weight"))
        self.assertTrue(down["form"].startswith("6 bits") and 6 < down["bits_per_weight"] < 7, down)
        self.assertIsNone(info["fingerprint"])
        prints = {self.json("info", "-m", MODEL, "--json", "--fingerprint", "--weights", form)["fingerprint"] for form in ("dense", "int4", "int8")}
        self.assertEqual((len(prints), {len(p) for p in prints}), (3, {32}))
        text = self.ok("info", "-m", MODEL, "--weights", "int4", "--fingerprint")
        self.assertRegex(text, r"matrices, 4\.\d+ bits a weight \(4 bits g32")
        self.assertRegex(text, r"fingerprint +[0-9a-f]{32}\n")
        dense = self.json("info", "-m", MODEL, "--json", "--dtype", "bf16")
        self.assertGreater(info["workspace_bytes"], dense["workspace_bytes"])  # panels that become values

    def test_bench_holds_several_forms_of_weights(self):
        args = ("bench", "-m", MODEL, "-p", "0", "-n", "4", "-r", "1", "--dtype", "bf16", "--weights", "dense", "--weights", "int4")
        dense, int4 = json.loads(self.ok(*args, "-o", "json"))
        self.assertEqual([r["weights"] for r in (dense, int4)], ["dense", "int4"])
        self.assertGreater(dense["bytes_per_token"], 2 * int4["bytes_per_token"])
        self.assertNotEqual(dense["output_hash"], int4["output_hash"])
        self.assertEqual(dense["speed_up"], 1)
        self.assertRegex(self.ok(*args), r"\| int4 \|")
        shape = json.loads((ROOT / "bench/shapes/1.1b.json").read_text())
        big = self.write("big.json", json.dumps(shape | {"num_hidden_layers": 4000, "intermediate_size": 56320}))
        self.fails("bench", "--random-weights", big, "--weights", "dense", "--weights", "int8", says="--weights dense --weights int8: the weights of all of these take")

    def test_bench_compares_codecs_of_kv(self):
        args = ("bench", "-m", MODEL, "-p", "0", "-n", "3", "-d", "700", "-b", "2", "-r", "1", "--threads", "1")
        codecs = ("--kv-codec", "bf16", "--kv-codec", "int8")
        fewer = ("--kv-codec", "k8v4", "--kv-codec", "int4")
        bf16, int8, k8v4, int4 = json.loads(self.ok(*args, *codecs, *fewer, "--fill", "random", "-o", "json"))
        self.assertEqual([(r["type_k"], r["type_v"]) for r in (bf16, int8, k8v4, int4)], [("bf16", "bf16"), ("int8", "int8"), ("int8", "int4"), ("int4", "int4")])
        self.assertTrue(bf16["kv_bytes"] > int8["kv_bytes"] > k8v4["kv_bytes"] > int4["kv_bytes"])
        self.assertTrue(int8["coded_bytes_read"] > k8v4["coded_bytes_read"] > int4["coded_bytes_read"] > 0)
        self.assertEqual(bf16["coded_bytes_read"], 0)
        filled = int8["coded_bytes_read"]
        self.assertGreater(filled, 0)  # a coded arm that reads no code compares nothing
        info = self.json("info", "-m", MODEL, "--json")["kv_bytes_per_token_by_codec"]
        coded = 64 * (8 - 1 - 2)  # row 701 to 703 of page 10, in the block from page 8 on
        self.assertAlmostEqual(bf16["bytes_per_token"] - int8["bytes_per_token"], coded * (info["bf16"] - info["int8"]), delta=1)
        for r in (bf16, int8):
            kv = 700 * info["bf16"] - (coded * (info["bf16"] - info["int8"]) if r is int8 else 0)  # what depth 0 lacks
            self.assertAlmostEqual(r["p_ts"], 1 / (1 / r["depth_0_samples_ts"][0] + kv / r["read_gb_s"] / 1e9), delta=1e-6 * r["p_ts"])
            self.assertAlmostEqual(r["p_pct"], 100 * r["samples_ts"][0] / r["p_ts"], delta=1e-6 * r["p_pct"])
        prefilled, = json.loads(self.ok(*args, "--kv-codec", "int8", "-o", "json"))
        self.assertEqual(prefilled["coded_bytes_read"], filled)  # a random fill leaves codes as prefilling does
        lines = self.ok(*args, *codecs, "--weights", "dense", "--weights", "int8", "--fill", "random").splitlines()
        self.assertEqual([line.split(" | ")[2] for line in lines if "tg3" in line], ["dense, KV bf16", "dense, KV int8", "int8, KV bf16", "int8, KV int8"])
        self.assertIn("| P | % of P |", lines[0])
        self.assertLessEqual(len(lines[0]), 100)

    def test_bench_of_sequences_with_a_common_beginning(self):
        args = ("bench", "-m", MODEL, "-p", "0", "-n", "3", "-d", "700", "-b", "3", "--shared-depth", "650", "-r", "1", "--threads", "1", "-o", "json")
        for fill in ("random", "prefill"):
            (on,), (off,) = (json.loads(self.ok(*args, "--fill", fill, "--shared-attention", value)) for value in ("on", "off"))
            self.assertEqual((on["n_shared_depth"], off["kv_bytes_saved_by_sharing"]), (650, 0))
            info = self.json("info", "-m", MODEL, "--json")["kv_bytes_per_token_by_codec"]
            self.assertEqual(on["kv_bytes_saved_by_sharing"], 3 * 2 * 640 * info["bf16"])
            self.assertEqual(on["kv_bytes_read"] + on["kv_bytes_saved_by_sharing"], off["kv_bytes_read"])
            self.assertLess(on["kv_bytes"], 3 * 704 * info["bf16"] * 2)
            self.assertLess(on["bytes_per_token"], off["bytes_per_token"])
        self.fails(*args, "--kv", "snapkv", says="--shared-depth requires a policy that keeps all KV, found snapkv")

    def test_codecs_of_kv_that_contradict_other_flags(self):
        for command in (("run", "-m", MODEL), ("info", "-m", MODEL), ("bench", "-m", MODEL)):
            self.fails(*command, "--kv-dtype", "f32", "--kv-codec", "int8", *(["a"] if command[0] == "run" else []), says=["--kv-codec int8", "--kv-dtype f32"])
        none = self.copy_model()
        (none / "model.safetensors").write_bytes(b"")  # the flags are refused before weights are read
        static = ["KV policy static", "int8", "--kv-codec bf16 and f32"]
        self.fails("run", "-m", none, "--kv", "static:capacity=400", "--kv-codec", "int8", "a", says=static)
        self.fails("bench", "-m", none, "--kv", "static", "--kv-codec", "bf16", "--kv-codec", "int8", says=static)
        for name, says in (("f16", "'f16'; the nearest is bf16; allowed are auto, bf16, f32, int8, k8v4, int4\n"), ("int5", "'int5'; allowed are")):
            p = run("bench", "-m", MODEL, "--kv-codec", name)
            self.assertEqual(p.returncode, 2)
            self.assertIn("--kv-codec: unknown KV codec " + says, p.stderr)
        for theirs, ours in (("q8_0", "int8"), ("q8_0,q4_0", "k8v4")):
            p = run("info", "-m", MODEL, "--kv-codec", theirs, "--json")
            self.assertEqual((p.returncode, p.stderr.count(f"KV codec '{theirs}' is read as {ours}")), (0, 1), p.stderr)
            self.assertEqual(json.loads(p.stdout)["kv_codec"], ours)

    def test_info_has_the_bytes_of_each_codec(self):
        config = json.loads((MODEL / "config.json").read_text())["text_config"]
        values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        info = self.json("info", "-m", MODEL, "--json")
        sizes = info["kv_bytes_per_token_by_codec"]
        self.assertEqual((sizes["bf16"], sizes["f32"], info["kv_bytes_per_token"]), (2 * values, 4 * values, 2 * values))
        shares = [sizes[codec] / sizes["bf16"] for codec in ("int8", "k8v4", "int4")]
        self.assertTrue(0.5 < shares[0] <= 0.54 and 0.375 < shares[1] <= 0.41 and 0.25 < shares[2] <= 0.3, sizes)
        self.assertEqual(self.json("info", "-m", MODEL, "--json", "--kv-codec", "int8")["kv_bytes_per_token"], sizes["int8"])
        self.assertRegex(self.ok("info", "-m", MODEL), r"per 1k tokens in int8; values stay: the first page, of 64 tokens, and the last 2 to 6\n")

    def test_info_reports_the_memory_plan(self):
        def plan(*flags):
            out = self.ok("info", "-m", MODEL, *flags)
            units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
            return out, {name: float(n) * units[unit] for name, n, unit in
                         re.findall(r"^ *(memory|weights|--cache-ram|--kv-memory) +([0-9.]+) ([kMGT]?B)", out.split("FLOPs")[1], re.M)}
        _, shares = plan()
        about = lambda x: {"delta": 0.01 * x}
        self.assertAlmostEqual(shares["--cache-ram"], shares["memory"] / 4, **about(shares["--cache-ram"]))
        left = shares["memory"] - shares["weights"] - shares["--cache-ram"]
        self.assertAlmostEqual(shares["--kv-memory"], 0.75 * left, **about(left))
        self.assertAlmostEqual(plan("--dtype", "f32")[1]["weights"], 2 * shares["weights"], **about(shares["weights"]))
        out, shares = plan("--cache-ram", "3MB", "--kv-memory", "2GB")
        self.assertEqual((shares["--cache-ram"], shares["--kv-memory"]), (3e6, 2e9))
        self.assertNotIn("--cache-disk", out)
        disk = self.folder / "cache"
        self.assertIn(f"--cache-disk     {disk}: not there yet", plan("--cache-disk", disk)[0])
        self.assertFalse(disk.exists())
        self.ok("run", "-m", MODEL, "-i", PAGE, "--max-tokens", "1", "--reuse", "vlcache", "--cache-disk", disk, "--cache-prefixes", "off", "?")
        self.assertRegex(plan("--cache-disk", f"{disk},5GB")[0], r"cache: 2 records, [0-9.]+ MB of at most 5\.00 GB\n")
        self.assertRegex(plan("--cache-redis", "redis://u:secret@127.0.0.1:1")[0], r"--cache-redis +\S*127\.0\.0\.1\S*: .*refused\n")
        self.assertNotIn("secret", plan("--cache-redis", "redis://u:secret@127.0.0.1:1")[0])

    def test_more_memory_than_the_machine_has_is_said(self):
        p = run("run", "-m", MODEL, "a", "--max-tokens", "1", "--cache-ram", "64TiB")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("warning: --cache-ram 64TiB is more than the", p.stderr)
        self.assertNotIn("warning", run("run", "-m", MODEL, "a", "--max-tokens", "1", "--cache-ram", "64MiB").stderr)

    def test_folders_of_outputs(self):
        """They are made, or the command fails before it computes anything, even before it finds its model."""
        out = self.folder / "new" / "deep" / "logits.safetensors"
        self.ok("logits", "-m", MODEL, "--raw", "a", "-o", out)
        self.assertIn("logits", read_safetensors(out))
        (self.folder / "file").write_text("")
        for command in (("logits", "--raw", "a"), ("inspect", "a"), ("tune", "heads"), ("bench",)):
            for where, says in ((self.folder / "file" / "x.csv", "its folder cannot be made"), (self.folder / "new.csv", "this is a folder"), ("/proc/new.csv", "cannot be written")):
                (self.folder / "new.csv").mkdir(exist_ok=True)
                self.fails(*command, "-m", self.folder / "none", "-o", where, says=says)

    def test_bench_reports_every_test_with_its_limit(self):
        args = ("bench", "-m", MODEL, "-p", "32,0", "-n", "4", "-d", "0,70", "-r", "2", "--fill", "random")
        tiles, *rows = json.loads(self.ok(*args, "--tiles", "2", "-o", "json"))
        self.assertEqual((tiles["n_tiles"], tiles["n_prompt"]), (2, 0))
        self.assertIn(tiles["limit"], ("flops", "bandwidth"))  # by the speeds that were measured
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows], [(32, 0, 0), (0, 4, 0), (32, 0, 70), (0, 4, 70)])
        for r in (tiles, *rows):
            self.assertTrue(r["avg_ts"] > 0 and r["stddev_ts"] >= 0 and r["limit_pct"] > 0, r)
        self.assertEqual([r["p_ts"] is not None for r in rows], [False, False, False, True])  # decoding after a depth
        few = ("bench", "-m", MODEL, "-p", "0", "-n", "4", "-r", "1", "--fill", "random")  # each row measures the machine again
        table = self.ok(*few, "-d", "0,70", "-o", "md", "--threads", "2", "--kv-codec", "int8")
        for part in ("| limit | P | % of P |\n", "| 2 |", "| tg4 @ d70, KV int8 |", "|  |  |\n"):
            self.assertIn(part, table)
        self.assertEqual(len(self.ok(*few, "-o", "csv").splitlines()), 2)

    def test_bench_page_measures_an_answer_about_a_page(self):
        row = json.loads(self.ok("bench", "page", "-m", MODEL, "-n", "4", "-r", "2", "-o", "json"))
        self.assertEqual((row["image_tokens"], row["prompt_tokens"], len(row["samples_answer_ts"])), (256, 296, 2))
        self.assertGreaterEqual(row["kv_bytes"], 8 * 2 * 296 * 64 * 2 * 2)  # layers, heads, tokens, head size, K and V, bytes
        self.assertGreater(row["peak_bytes"], row["weight_bytes"])
        self.assertTrue(0 < row["encoder_s"] < row["first_token_s"], row)
        self.assertGreater(row["answer_ts"], 0)
        # The settings beside a config.json, 8 bits; the same columns.
        names, values = (line.split(",") for line in self.ok("bench", "page", "--random-weights", MODEL / "config.json", "-n", "1", "--weights", "int8", "-o", "csv").splitlines())
        eighth = dict(zip(names, values, strict=True))
        self.assertEqual((eighth["model"], eighth["weights"], eighth["image_tokens"]), ("config", "int8", "256"))
        self.assertLess(int(eighth["weight_bytes"]), row["weight_bytes"])
        self.assertEqual(list(eighth), [key for key in row if key in eighth])

    def test_bench_page_cuts_the_page_as_each_family_does(self):
        # 4 x 3 tiles and the whole page, 64 tokens each; a grid of 32 pixels a token; a whole image and one tile with its newlines.
        small = {"hidden_size": 64, "num_hidden_layers": 1, "depth": 1, "intermediate_size": 64, "num_heads": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "out_hidden_size": 64,
                 "deepstack_visual_indexes": [0], "vocab_size": 1000, "head_dim": 64, "image_token_id": 990, "video_token_id": 991, "vision_start_token_id": 992, "image_token_index": 993,
                 "bos_token_id": 1, "eos_token_id": 2}
        for name, page, tokens in (("smolvlm-256m", "1240x1754", 13 * 64), ("qwen3-vl-2b", "330x630", 10 * 20), ("llava-next-1.1b", "300x300", 576 + 24 * 25)):
            shape = json.loads((ROOT / f"bench/shapes/{name}.json").read_text())
            for part in (shape, shape.get("text_config", {}), shape.get("vision_config", {})):
                part.update({key: value for key, value in small.items() if key in part})
            if name == "qwen3-vl-2b":
                shape["text_config"]["rope_scaling"]["mrope_section"], shape["vision_end_token_id"] = [12, 10, 10], 994
            file = self.write(f"{name}.json", json.dumps(shape))
            out = self.json("bench", "page", "--random-weights", file, "--page", page, "-n", "1", "-o", "json")
            self.assertEqual((out["model"], out["image_tokens"]), (name, tokens))
        shape["image_processor"]["image_processor_type"] = "Other"
        self.fails("bench", "page", "--random-weights", self.write("other.json", json.dumps(shape)), says=["other.json: image_processor", "Other", "supported are"])
        del shape["image_processor"]
        self.fails("bench", "page", "--random-weights", self.write("bare.json", json.dumps(shape)), says="expected preprocessor_config.json")
        self.fails("bench", "page", "--random-weights", ROOT / "bench/shapes/135m.json", says="needs a vision model")
        self.fails("bench", "page", "-m", MODEL, "--page", "1240", says="--page: expected WIDTHxHEIGHT")

    def test_bench_charts_its_comparison(self):
        args = ("bench", "-m", MODEL, "-p", "0", "-n", "4", "-d", "64,128", "-r", "1", "--kv", "full", "--kv", "snapkv", "--kv-budget", "0.2")
        table = self.folder / "speed.csv"
        self.assertIn("| snapkv+uniform |", self.ok(*args, "-o", table))
        self.assertEqual(len(table.read_text().splitlines()), 5)
        chart = xml.etree.ElementTree.parse(self.folder / "speed.svg").getroot()
        text = " ".join(chart.itertext())
        for label in ("decoding, times as fast as full", "snapkv+uniform tg4", "tokens in the cache"):
            self.assertIn(label, text)
        self.assertEqual(len(chart.findall("{http://www.w3.org/2000/svg}circle")), 4)
        self.fails(*args, "-o", table / "x.csv", says="its folder cannot be made")

    def test_chat_keeps_its_cache_and_undoes_turns(self):
        script = f"/image {PAGE}\nWhat is the TOTAL?\n/stats\nWhat is the DATE?\n/stats\n/undo\n/reset\n/image nowhere.png\n/stats\n/quit\n"
        p = run("chat", "-m", MODEL, "--max-tokens", "16", "--temperature", "0", stdin=script)
        self.assertEqual(p.returncode, 0, p.stderr)
        answer = self.json("run", "-m", MODEL, "-i", PAGE, "--max-tokens", "16", "--temperature", "0", "--json", "What is the TOTAL?")
        self.assertEqual(answer["text"][0], " ")  # not printed
        self.assertEqual(p.stdout.splitlines()[0], answer["text"].strip().splitlines()[0])
        self.assertRegex(p.stderr, r"[1-9]\d\d of \d+ prompt tokens came from the KV cache")
        self.assertIn("took back: What is the DATE?", p.stderr)
        self.assertIn("nowhere.png", p.stderr)
        self.assertIn("no answer yet", p.stderr)
