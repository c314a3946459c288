"""One format of question files: `eval --data`, `run --requests`, `tune reuse --data` and --calibrate read each other's."""
import json
import shutil

from program import MODEL, PAGE, ProgramTest, run

DEMO = MODEL / "demo/questions.jsonl"
RUN = ("run", "-m", MODEL, "--temperature", "0", "--max-tokens", "32", "--requests")
EVAL = ("eval", "-m", MODEL, "--kv", "streaming", "--kv-budget", "0.5", "--max-tokens", "32", "--data")


class QuestionFiles(ProgramTest):
    def eval(self, file, *more, status=0):
        out = self.folder / f"out-{len(list(self.folder.glob('out-*')))}"
        p = run(*EVAL, file, "-o", out, *more)
        self.assertEqual(p.returncode, status, p.stderr)
        return p

    def test_the_demos_questions_are_requests(self):
        lines = self.lines_of(*RUN, DEMO, "--batch", "4", "--lookahead", "4")
        asked = [json.loads(line) for line in DEMO.read_text().splitlines()]
        self.assertEqual([(a["id"], a["text"].strip()) for a in lines], [(q["id"], q["answer"]) for q in asked])

    def test_requests_with_answers_are_questions(self):
        shutil.copy(PAGE, self.folder / "page.png")
        file = self.write("both.jsonl", "\ufeff" + json.dumps({"id": "a", "prompt": "What is the TOTAL?", "images": "page.png", "answer": "TOTAL: 435.75", "max_tokens": 9, "kv": "full"}) + "\r\n\r\n"
                          + json.dumps({"question": "What is the DATE?", "image": ["page.png"], "answers": ["DATE: 2026-03-14"], "kind": "k", "metric": "exact"}) + "\r\n")
        self.eval(file)
        scores = [json.loads(line)["answers"][0]["score"] for line in (self.folder / "out-0/samples.jsonl").read_text().splitlines()]
        self.assertEqual(scores, [1, 1])
        self.assertEqual([a["text"].strip()[:5] for a in self.lines_of(*RUN, file)], ["TOTAL", "DATE:"])
        p = run("run", "-m", MODEL, "--weights", "int4", "--calibrate", file, "--max-tokens", "1", "Hi", env={"VLCACHE_PACKED_CACHE": "off"})
        self.assertEqual((p.returncode, "calibration: 557 tokens" in p.stderr or "tokens in" in p.stderr), (0, True), p.stderr)

    def test_bad_lines(self):
        good = {"id": 0, "question": "What is the TOTAL?", "answer": "x"}
        lines = [good, {"question": "Q", "prompt": "Q", "answer": "x"}, {"image": "a", "images": ["a"], "prompt": "Q", "answer": "x"}, {"answer": "x"}, {"id": 5, "turns": [good, good]}]
        file = self.write("bad.jsonl", "\n" + "".join(json.dumps(line) + "\n" for line in lines))
        answers = self.lines_of(*RUN, file)
        self.assertEqual([a.get("error", "").split(": ")[:2] for a in answers], [[""]] + [[f"line {n}", "request"] for n in range(3, 7)])
        for answer, says in zip(answers[1:], ("either question or prompt, found both", "either images or image, found both", "or messages, found neither", "turns: expected a question on each line")):
            self.assertIn(says, answer["error"])
        p = self.eval(file)
        for n, says in ((3, "either question or prompt, found both"), (4, "either images or image, found both"), (5, "expected question or prompt, found neither")):
            self.assertRegex(p.stderr, f"left out: .*bad.jsonl: line {n}: .*{says}")
        self.assertIn("## 2 questions", p.stdout)

    def test_files_without_a_question(self):
        for name, text in (("empty", ""), ("blank", "\n \r\n"), ("mark", "\ufeff")):
            file = self.write(name, text)
            self.fails(*RUN, file, says=[str(file), "expected requests, found no line"])
            self.fails(*EVAL, file, "-o", self.folder / "none", says=[str(file), "expected a JSON object {images, question, answer} on every line"])
        self.fails("run", "-m", MODEL, "--requests", self.folder / "none.jsonl", says="none.jsonl: cannot be opened: No such file")

    def test_many_and_long_lines(self):
        """Ten thousand that are no questions, and one of 10 MB, which no context holds."""
        many = '{"question": "Q", "prompt": "Q"}\n' * 10_000
        last = json.dumps({"prompt": "Hi", "answer": "x"})
        file = self.write("many.jsonl", many + json.dumps({"question": "a " * 5_000_000, "answer": "x"}) + "\n" + last)
        answers = self.lines_of(*RUN, file, "--batch", "2")
        self.assertEqual((len(answers), sum("error" in a for a in answers)), (10_002, 10_001))
        self.assertIn("line 10000: request: expected either question or prompt, found both", answers[9_999]["error"])
        self.assertRegex(answers[10_000]["error"], "^line 10001: .*context")
        file.write_text(many + json.dumps({"question": "a " * 5_000_000, "prompt": "Q"}) + "\n" + last)
        p = self.eval(file)
        self.assertEqual(p.stderr.count("left out: "), 10_001, p.stderr[-500:])
        self.assertIn("## 1 questions", p.stdout)
