"""`--calibrate`: prompts that are computed before a model is quantised, and whose inputs its errors are weighed by."""
import json
import shutil
import unittest

from program import MODEL, PAGE, ProgramTest, run

QUESTION = "What is the TOTAL?"


class Calibrate(ProgramTest):
    def requests(self, *lines, name="calibration.jsonl"):
        return self.write(name, "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))

    def ask(self, *more, model=MODEL):
        """What became of the packed file, the answer and the lines about calibration and file."""
        p = run("run", "-m", model, "-i", PAGE, "--json", "--temperature", "0", "--max-tokens", "8", "--weights", "int4", "--packed-cache",
                self.folder / "packed", "--cache-disk", self.folder / "kv", *more, QUESTION)
        self.assertEqual(p.returncode, 0, p.stderr)
        answer = json.loads(p.stdout)
        lines = [line for line in p.stderr.splitlines() if line.startswith(("calibration: ", "vlcache: warning: --calibrate", "packed weights: "))]
        return answer["weights"]["packed_file"], answer["caches"]["tiers"]["disk"]["hits"] > 0, lines

    def fingerprint(self, *more, model=MODEL):
        return self.json("info", "-m", model, "--json", "--fingerprint", *more)["fingerprint"]

    def test_the_second_start_knows_the_calibration(self):
        page = self.folder / "page.png"
        shutil.copy(PAGE, page)
        file = self.requests({"id": 1, "prompt": QUESTION, "images": [str(page)]}, "", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3})
        self.assertEqual(self.ask()[:2], ("built", False))
        state, reused, lines = self.ask("--calibrate", file)
        self.assertEqual((state, reused), ("built", False))  # nor is KV of the other weights found
        self.assertEqual(lines[0], f"calibration: computing 2 prompts of {file}")
        self.assertRegex(lines[1], r"^calibration: \d+ tokens in \d+\.\d s$")
        few = [line for line in lines if "tokens are few" in line]
        self.assertEqual(len(few), 0 if int(lines[1].split()[1]) >= 1000 else 1)
        self.assertRegex(lines[-1], "packed weights: written to")
        state, reused, lines = self.ask("--calibrate", file)
        self.assertEqual((state, reused, len(lines)), ("hit", True, 1))
        self.assertEqual(self.ask()[0], "hit")  # both files are there
        self.assertEqual({json.loads(line)["about"].get("calibration") is None for line in self.ok("cache", "--packed", "--packed-cache", self.folder / "packed", "--json").splitlines()},
                         {True, False})
        int4 = ("--weights", "int4")
        prints = [self.fingerprint(), self.fingerprint(*int4), self.fingerprint(*int4, "--calibrate", file)]
        shutil.copy(MODEL / "demo/table.png", page)
        prints.append(self.fingerprint(*int4, "--calibrate", file))  # the same lines, another image
        other = self.requests({"prompt": QUESTION}, name="other.jsonl")
        prints.append(self.fingerprint(*int4, "--calibrate", other))
        self.assertEqual(len(set(prints)), len(prints))
        self.assertEqual(self.ask("--calibrate", other)[0], "built")

    def test_weights_are_other_ones(self):
        file = self.requests({"prompt": QUESTION, "images": [str(PAGE)]})
        logits = {}
        for name, flags in (("without", ()), ("with", ("--calibrate", file)), ("again", ("--calibrate", file, "-t", "1"))):
            self.ok("logits", "-m", MODEL, "--weights", "int4+", "--dtype", "f32", *flags, "-o", self.folder / name, QUESTION)
            logits[name] = (self.folder / name).read_bytes()
        self.assertNotEqual(logits["with"], logits["without"])
        self.assertEqual(logits["with"], logits["again"])

    def test_what_is_refused(self):
        good = {"prompt": QUESTION}
        file = self.requests(good)
        ask = ("run", "-m", MODEL, QUESTION)
        for weights in ("auto", "dense", "int8"):
            self.fails(*ask, "--weights", weights, "--calibrate", file, says=f"--calibrate with --weights {weights} has no effect: expected --weights int4 or int4+")
        int4 = (*ask, "--weights", "int4", "--calibrate")
        self.fails(*int4, self.folder / "none.jsonl", says="none.jsonl")
        self.fails(*int4, "-", says="expected a file, which every start reads")
        self.fails(*int4, self.requests("", " "), says="expected requests, found no line")
        for line, why in (("{", "request"), ({"promt": "a"}, "did you mean 'prompt'"), ({"prompt": "a", "images": ["none.png"]}, "none.png"),
                          ({"prompt": "a <image:2>", "images": [str(PAGE)]}, "<image:2>")):
            bad = self.requests(good, "", line)
            p = run(*int4, bad)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertIn(f"--calibrate: {bad}:3: ", p.stderr)
            self.assertIn(why, p.stderr)
            self.assertEqual(p.stdout, "")
        self.fails("bench", "--random-weights", MODEL / "config.json", "--weights", "int4", "--calibrate", file, says="--calibrate goes with -m")


if __name__ == "__main__":
    unittest.main()
