"""`vlcache chat`: what a refused image or question leaves behind, and Ctrl-C."""
import json
import re
import signal
import subprocess

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, run

QUESTION = "What is the TOTAL?"
LONG = "A" * 6000  # tokens: more than the context of 4096


class Chat(ProgramTest):
    def chat(self, *lines, model=MODEL, args=()):
        """Answers on stdout, and the lines that /stats printed about the KV cache as (kept, prompt tokens)."""
        p = run("chat", "-m", model, "--max-tokens", "8", "--temperature", "0", *args, stdin="".join(f"{line}\n" for line in lines))
        self.assertEqual(p.returncode, 0, p.stderr)
        stats = [(int(kept), int(n)) for kept, n in re.findall(r"(\d+) of (\d+) prompt tokens came from the KV cache", p.stderr)]
        return p.stdout.splitlines(), stats, p.stderr

    def test_a_refused_question_leaves_the_conversation_and_its_kv(self):
        told, told_stats, _ = self.chat(f"/image {PAGE}", QUESTION, "What is the DATE?", "/stats")
        answers, stats, errors = self.chat(f"/image {PAGE}", QUESTION, "/stats", LONG, "/stats", "What is the DATE?", "/stats")
        self.assertEqual(answers, told)
        self.assertIn("context is 4096", errors)
        self.assertEqual(stats[0], stats[1])  # of the last answer, still there
        self.assertEqual(stats[2], told_stats[0])
        self.assertGreater(stats[2][0], 256)  # the image was not computed again

    def test_an_image_of_an_earlier_conversation_is_loaded(self):
        again = [f"/image {PAGE}", QUESTION, "/stats"]
        answers, stats, told = self.chat(*again, "/reset", *again)
        self.assertEqual(answers[0], answers[1])
        self.assertEqual([kept for kept, _ in stats], [0, 256])  # the prompt's whole pages
        self.assertEqual([int(n) for n in re.findall(r"(\d+) of them from the cache", told)], [256])

    def test_a_session_continues_after_a_restart(self):
        disk = self.folder / "cache"
        args = ("chat", "-m", MODEL, "--temperature", "0", "--max-tokens", "8", "--explain")
        def chat(*lines, flags=("--session", "a", "--cache-disk", disk)):
            p = run(*args, *flags, stdin="\n".join(lines) + "\n")
            self.assertEqual(p.returncode, 0, p.stderr)
            return p.stdout.splitlines(), p.stderr
        def prefix(told):
            return [int(n) for n in re.findall(r"prompt: (\d+) of", told)]
        whole, told = chat(f"/image {PAGE}", QUESTION, "What is the DATE?", "What is the TAX?", flags=())
        kept = prefix(told)
        page = self.folder / "page.png"
        page.write_bytes(PAGE.read_bytes())
        answers, _ = chat(f"/image {page}", QUESTION)
        page.unlink()  # the session has it
        more, told = chat("What is the DATE?")
        self.assertRegex(told, r"session a: 1 question, KV of (\d+) of \1 tokens was kept")
        self.assertEqual(prefix(told), [kept[1]])  # as if the program had never ended
        last, told = chat("What is the TAX?", "/undo")
        self.assertEqual(prefix(told), [kept[2]])
        self.assertEqual(answers + more + last, whole)
        # beside the record up to the page's end, only the last turn's end is kept (whole pages, and the rest), and nothing of a writer that died
        kinds = [json.loads(line)["kind"] for line in self.ok("cache", "ls", disk, "--json").splitlines()]
        self.assertEqual(kinds.count("prefix"), 3)
        stale = disk / "sessions/a/.999999999-0.tmp"
        stale.write_text("half of it")
        chat()
        self.assertFalse(stale.exists())
        # damaged KV is computed again, damaged text is said
        for path in disk.rglob("*.vlr"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        again, told = chat("What is the TAX?")
        self.assertIn("2 questions, KV of 0 of", told)
        self.assertEqual(again, last)
        # it is somebody's alone, and goes with its system message
        self.fails(*args, "--session", "a", "--cache-disk", disk, "--system", "Be brief.", stdin="", says="begun with --system ''")
        first = subprocess.Popen([VLCACHE, *map(str, args), "--session", "a", "--cache-disk", str(disk)], stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        first.stderr.readline()
        self.fails(*args, "--session", "a", "--cache-disk", disk, stdin="", says="open in another process")
        first.communicate("")
        for path in (disk / "sessions/a").iterdir():
            if path.name == "session.json":
                path.write_text(path.read_text()[:200])
        self.fails(*args, "--session", "a", "--cache-disk", disk, stdin="", says="session.json")
        self.fails(*args, "--session", "a", stdin="", says="expected --cache-disk DIR")
        self.fails(*args, "--session", "../a", "--cache-disk", disk, stdin="", says="letters, digits")

    def test_a_session_outgrows_its_context(self):
        long = lambda i: f"{i}: what is the TOTAL? " + "abcdefg hijk lmno. " * 50  # about 1000 tokens
        flags = ("chat", "-m", MODEL, "--temperature", "0", "--max-tokens", "8", "--explain", "--cache-disk", self.folder / "cache")
        lines = f"/image {PAGE}\n" + "".join(long(i) + "\n" for i in range(5)) + f"/image {MODEL / 'demo/table.png'}\nAnd the DATE?\n"
        p = run(*flags, "--session", "a", stdin=lines)
        self.assertEqual(p.returncode, 0, p.stderr)
        told, = re.findall(r"does not see the oldest (\d) of (\d) questions any more. The KV of the others is kept \((\d+) tokens; .*, (\d+) tokens are computed", p.stderr)
        gone, all, kept, computed = map(int, told)
        self.assertLess(kept + computed, 2049)
        self.assertGreaterEqual(kept, 0.9 * 1000 * (all - gone - 1))  # but the question that did not fit
        found = [int(n) for n in re.findall(r"prompt: (\d+) of", p.stderr)]
        self.assertEqual(found[all - 1], kept)
        self.assertGreater(found[all], kept + computed - 2)  # the next turn continues this
        again = run(*flags, "--session", "a", stdin="And now?\n")
        self.assertRegex(again.stderr, r"session a: \d questions?, KV of (\d+) of \1 tokens was kept")
        self.assertGreater(int(re.findall(r"prompt: (\d+) of", again.stderr)[0]), found[all])
        for more in (("--context-full", "stop", "--session", "b"), ()):  # without a session it is the default
            p = run(*flags, *more, stdin=lines)
            self.assertIn("the model's context is 4096", p.stderr)

    def test_a_session_with_compressed_kv_is_recomputed(self):
        flags = ("chat", "-m", MODEL, "--temperature", "0", "--max-tokens", "8", "--session", "b", "--cache-disk", self.folder / "cache",
                 "--kv", "snapkv", "--kv-budget", "0.5")
        for said in ("", "session b: 1 question, KV of 0 of 0 tokens was kept"):
            p = run(*flags, stdin=f"/image {PAGE}\n{QUESTION}\n" if not said else "What is the DATE?\n")
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertIn(said, p.stderr)

    def test_an_image_that_cannot_be_used_is_not_kept(self):
        text_model = ROOT / "tests/fixtures/models/llama-gqa4"
        answers, stats, errors = self.chat(f"/image {PAGE}", "Hello", "/stats", model=text_model)
        self.assertIn("takes text only", errors)
        self.assertNotIn("goes with the next message", errors)
        self.assertEqual((len(answers), len(stats)), (1, 1))
        self.assertEqual(run("chat", "-m", text_model, "-i", PAGE, stdin="Hello\n").returncode, 2)

    def test_too_many_images_are_dropped_with_their_question(self):
        answers, stats, errors = self.chat(QUESTION, *[f"/image {PAGE}"] * 16, "Which?", "Which?", "/stats")
        self.assertIn("dropped", errors)
        self.assertEqual(len(answers), 2)
        self.assertLess(stats[0][1], 256)
        self.assertGreater(stats[0][0], 0)

    def test_images_of_a_refused_question_wait_for_the_next(self):
        answers, stats, _ = self.chat(f"/image {PAGE}", LONG, QUESTION, "/stats")
        self.assertEqual(answers, self.chat(f"/image {PAGE}", QUESTION)[0])
        self.assertGreater(stats[0][1], 256)

    def test_full_kv_memory_drops_the_images(self):
        answers, stats, errors = self.chat(f"/image {PAGE}", QUESTION, "Hello", "/stats", args=("--kv-memory", "0.0003"))
        self.assertIn("KV cache is full", errors)
        self.assertEqual(len(answers), 1)
        self.assertLess(stats[0][1], 256)

    def test_reset_drops_and_undo_restores(self):
        _, stats, _ = self.chat(f"/image {PAGE}", "/reset", QUESTION, "/stats")
        self.assertLess(stats[0][1], 256)
        answers, stats, _ = self.chat(f"/image {PAGE}", QUESTION, "/undo", QUESTION, "/stats")
        self.assertEqual(answers[0], answers[1])
        self.assertGreater(stats[0][1], 256)

    def test_commands_change_the_conversation(self):
        page, saved = self.folder / "my page.png", self.folder / "out.json"
        page.write_bytes(PAGE.read_bytes())
        answers, stats, told = self.chat("/system Be brief.", f"/image '{page}' {PAGE}", "/undo", "/reset", f"/image {page}", "/kv vl-cache 0.5", QUESTION, "/stats",
                                         "/retry", "/kv full", "/retry", "/stats", f"/save {saved}", "/reset", f"/load '{saved}'", "What is the DATE?", "/stats", "/kv nothing", "/kv",
                                         "/load /no/such.json", "/system ''")
        self.assertEqual(told.count("goes with the next message"), 3)
        self.assertIn("system message: Be brief.", told)
        self.assertIn("KV policy: post_vision+vl-cache, budget 0.5\n", told)
        self.assertEqual(len(re.findall(r"dropped \d+ of \d+ slots", told)), 1)  # by the first policy alone
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[2], self.chat(f"/image {PAGE}", QUESTION, args=("--system", "Be brief."))[0][0])
        self.assertIn("1 question with the answers, 1 image\n", told)
        self.assertGreater(stats[-1][1], stats[1][1])  # the loaded question and its image are in the prompt
        self.assertEqual(told.count("KV policy: full"), 2)
        self.assertIn("/no/such.json", told)
        self.assertIn("system message: none", told)
        file = json.loads(saved.read_text())
        self.assertEqual(file["system"], "Be brief.")
        self.assertEqual([m["role"] for m in file["messages"]], ["user", "assistant"])
        self.assertEqual(file["messages"][1]["answers"][0]["text"], " " + answers[2])  # which begins without white space when it is printed

    def test_the_codec_of_the_conversation(self):
        _, _, told = self.chat(f"/image {PAGE}", QUESTION, "/codec", "/codec int8", "/codec int9", "/kv static", "What is the DATE?", "/codec auto", "And the TOTAL?",
                               args=("--dtype", "bf16", "--explain", "--reuse", "exact"))
        self.assertEqual(re.findall("KV codec: (.*)", told), ["bf16", "int8", "bf16"])
        self.assertIn("kv_codec: unknown KV codec 'int9'", told)
        self.assertIn("KV policy static reserves slots of values, which cannot become int8", told)
        self.assertRegex(told, r"prompt: 0 of \d+ tokens were found, \d+ computed \(256 more tokens are in the cache, but computed with KV codec bf16\)")
        self.assertEqual(re.findall(r"prompt: (\d+) of", told), ["0", "0", "256"])  # what bf16 has computed

    def start(self):
        p = subprocess.Popen([VLCACHE, "chat", "-m", str(MODEL), "--max-tokens", "4", "--temperature", "0"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.stdin.close)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.kill)
        return p

    def test_ctrl_c_exits_the_prompt(self):
        for question in ("", QUESTION + "\n"):
            with self.subTest(question):
                p = self.start()
                seen = ""
                while not seen.endswith("> "):
                    seen += p.stderr.read(1)
                if question:
                    p.stdin.write(question)
                    p.stdin.flush()
                    self.assertTrue(p.stdout.readline())
                    seen = ""
                    while not seen.endswith("> "):
                        seen += p.stderr.read(1)
                p.send_signal(signal.SIGINT)
                self.assertEqual(p.wait(timeout=60), 130)
