"""Reuse of images: the plan that `tune reuse` makes, and the gate that goes by it."""
import json
import subprocess
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, run

DATA = ROOT / "tests/fixtures/tinydoc/questions.jsonl"
QUESTION = "What is the TOTAL?"


class Reuse(ProgramTest):
    def ask(self, model, *more, n=2):
        text = "".join(json.dumps({"prompt": QUESTION, "images": [str(PAGE)], "system": f"Be brief {i}."}) + "\n" for i in range(n))
        p = run("run", "-m", model, "--requests", "-", "--temperature", "0", *more, stdin=text)
        self.assertEqual(p.returncode, 0, p.stderr)
        return [json.loads(line) for line in p.stdout.splitlines()], p.stderr

    def second(self, model, *more):
        answers, said = self.ask(model, *more)
        return answers[1]["cache"]["images"][0], said

    def test_a_plan_is_created_kept_and_measured_again(self):
        model = self.copy_model()
        (model / "reuse_plan.json").unlink()
        tune = ("tune", "reuse", "-m", model, "--data", DATA, "--profile", "2", "--compare", "6", "--target", "0.1")
        p = run(*tune)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertRegex(p.stderr, "greedy  loss .*\nexact   loss ")
        plan = json.loads((model / "reuse_plan.json").read_text())
        self.assertEqual(len(plan["shares"]), 8)
        self.assertEqual(plan["shares"], sorted(plan["shares"], reverse=True))
        self.assertLessEqual(plan["mean"], 0.1)
        self.assertEqual(plan["one_image"]["cases"] + plan["several_images"]["cases"], 6)
        page = (model / "reuse_plan.html").read_text()
        self.assertNotRegex(page, r'(src|href)="http')
        self.assertEqual(page.count("<svg"), 3)  # S_i(r), and the errors of K and V
        self.assertFalse((model / "reuse_plan.json.partial").exists())
        out = self.ok("verify", "reuse", "-m", model, "--data", DATA, "--compare", "4")
        self.assertRegex(out, r"one image: \d of \d answers equal .*\nseveral images: \d of \d answers equal .*\nseveral images, asked:r=0.15: ")
        self.assertEqual(plan["several_images"]["cases"], plan["several_images_looking"]["cases"])

    def test_an_interrupted_tuning_resumes(self):
        plan = self.folder / "plan.json"
        tune = [VLCACHE, "tune", "reuse", "-m", str(MODEL), "--data", str(DATA), "--profile", "3", "--compare", "3", "-o", str(plan)]
        partial = self.folder / "plan.json.partial"
        p = subprocess.Popen(tune, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and not (partial.exists() and len(partial.read_text().splitlines()) > 1):
            pass
        p.kill()
        p.communicate()
        errors = json.loads(partial.read_text().splitlines()[1])["errors"]  # as loaded, then after 0, 10 and 30 % that are right
        mean = lambda e, what, places: sum(e[what][i] for i in places) / sum(e["n"][i] for i in places)
        for what in "k", "v":
            self.assertGreater(mean(errors[0], what, range(32)), 0.01)
            for right, e in ((3, errors[2]), (9, errors[3])):  # places that stand after what is right, of 32
                self.assertLess(mean(e, what, range(1, right)), 0.1 * mean(errors[1], what, range(1, right)))
            self.assertLess(mean(errors[3], what, range(9, 32)), mean(errors[1], what, range(9, 32)))
        with partial.open("a") as file:
            file.write('{"profiled": 2, "lo')  # as a full disk leaves it
        self.ok(*tune[1:])
        whole, page = plan.read_text(), plan.with_suffix(".html").read_text()
        plan.unlink()
        self.ok(*tune[1:])
        self.assertEqual(json.loads(plan.read_text())["shares"], json.loads(whole)["shares"])
        self.assertEqual(plan.with_suffix(".html").read_text(), page)

    def test_the_gate(self):
        model = self.copy_model()
        path = model / "reuse_plan.json"
        plan = json.loads(path.read_text())
        n = 100
        plan["one_image"] = {"cases": n, "equal": n, "kl": 0}
        path.write_text(json.dumps(plan))

        found, said = self.second(model)
        self.assertEqual((found["source"], found["recomputed_tokens"] > 0), ("ram", True))
        self.assertEqual(said, "")

        path.write_text(json.dumps({**plan, "one_image": {"cases": n, "equal": n // 2, "kl": 0}}))
        found, said = self.second(model)
        self.assertEqual(found["source"], "computed")
        self.assertIn("below the bound of 0.99", said)
        self.assertEqual(self.second(model, "--reuse-bound", "0.4")[0]["source"], "ram")
        found, said = self.second(model, "--reuse", "vlcache")  # asked for by name
        self.assertEqual(found["source"], "ram")
        self.assertIn(f"{n // 2} of {n}", said)

        path.write_text(json.dumps({**plan, "model": "another"}))
        found, said = self.second(model)
        self.assertEqual(found["source"], "computed")
        self.assertIn("a plan for another model", said)
        self.fails("run", "-m", model, "--reuse-plan", path, "Q", says="a plan for another model")

        path.write_text("{")
        found, said = self.second(model)
        self.assertEqual(found["source"], "computed")
        self.assertIn("reuse_plan.json", said)

        path.unlink()
        found, said = self.second(model)
        self.assertEqual(found["source"], "computed")
        self.assertIn("there is no", said)
        self.assertEqual(len(said.splitlines()), 1)
        found, said = self.second(model, "--reuse", "vlcache")
        self.assertEqual(found["source"], "ram")
        self.assertIn("nothing was measured", said)

    def test_a_plan_applies_only_to_measured_cases(self):
        model = self.copy_model()
        path = model / "reuse_plan.json"
        plan = json.loads(path.read_text())
        two = {"prompt": QUESTION, "images": [str(PAGE), str(MODEL / "demo/table.png")]}
        two = json.dumps(two) + "\n" + json.dumps({**two, "system": "Read."}) + "\n"
        plan["one_image"] = {"cases": 50, "equal": 50, "kl": 0}
        bad, good = {"cases": 50, "equal": 40, "kl": 0}, {"cases": 50, "equal": 50, "kl": 0}
        planned, looking = 2 * 5.0, 0.5 * 512  # tokens: 2 % of each image, half of what the question looks at
        for planned_holds, looking_holds, computed in ((bad, bad, 512), (good, bad, planned), (good, good, planned), (bad, good, looking)):
            path.write_text(json.dumps({**plan, "several_images": planned_holds, "looking": "asked:r=0.5", "several_images_looking": looking_holds}))
            out = self.ok("run", "-m", model, "--requests", "-", stdin=two)
            images = json.loads(out.splitlines()[1])["cache"]["images"]
            self.assertEqual([i["source"] for i in images], ["computed" if computed == 512 else "ram"] * 2)
            self.assertAlmostEqual(sum(i["recomputed_tokens"] for i in images), computed, delta=3)

    def test_the_origin_of_an_images_kv(self):
        lines = [{"prompt": QUESTION, "images": [str(PAGE)], "system": s} for s in ("Look here.", "Read.")]
        lines = "".join(json.dumps(line) + "\n" for line in lines)
        for origin, sources in (("first", ["computed", "ram"]), ("neutral", ["computed", "ram"])):
            out = self.ok("run", "-m", MODEL, "--requests", "-", "--reuse", "static:r=0.1", "--reuse-origin", origin, stdin=lines)
            images = [json.loads(line)["cache"]["images"][0] for line in out.splitlines()]
            self.assertEqual([i["source"] for i in images], sources)
            self.assertEqual(images[0]["reason"], "first use" if origin == "first" else "computed by itself, then reused")
            self.assertEqual(images[0]["encoder"], "computed")

    def test_bad_input(self):
        for flags, says in ((("--reuse", "vlcash"), "did you mean 'vlcache'"), (("--reuse", "static:r=2"), "a number from 0 to 1"),
                            (("--reuse-plan", "/does/not/exist"), "/does/not/exist"), (("--reuse", "mpic:r=1"), "unknown parameter 'r'")):
            self.fails("run", "-m", MODEL, *flags, "Q", says=says)
        self.fails("tune", "reuse", "-m", MODEL, says="--data FILE.jsonl or --images DIR, found neither")
        self.fails("tune", "reuse", "-m", MODEL, "--images", self.folder, says="two images at least")
        self.fails("verify", "reuse", "-m", MODEL, "--data", DATA, "--reuse-plan", "/does/not/exist", says="/does/not/exist")


if __name__ == "__main__":
    unittest.main()
