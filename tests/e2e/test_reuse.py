"""Reuse of images: the plan that `tune reuse` makes, and the gate that goes by it."""
import json
import os
import pty
import re
import signal
import subprocess
import time
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
        tune = ("tune", "reuse", "-m", model, "--data", DATA, "--compare", "6", "--profile", "2")
        p = run(*tune)
        self.assertEqual(p.returncode, 0, p.stderr)
        # A verdict in words, and no figures of layers.
        self.assertRegex(p.stdout, r"^Reuse: off for one image in a prompt\. \d+ of \d+ test answers stayed the same; at most \d+ % get worse \(95 %\), 1 % may\. "
                                   r"Not enough questions: about \d+ more are needed\.\nReuse: off for several images in a prompt[.,] ")
        self.assertNotIn("loss", p.stdout + p.stderr)
        plan = json.loads((model / "reuse_plan.json").read_text())
        self.assertEqual(len(plan["shares"]), 8)
        self.assertEqual(plan["shares"], sorted(plan["shares"], reverse=True))
        self.assertAlmostEqual(plan["mean"], 0.025)
        one, several = plan["one_image"], plan["several_images"]
        self.assertEqual(one["cases"] + several["cases"], 6)
        for evidence in one, several:
            self.assertEqual(evidence["scores"]["cases"], evidence["cases"])  # the data has right answers
            for way in "chunks of 100", "batches of 3":
                self.assertEqual(evidence["floor"][way]["cases"], evidence["cases"])
        page = (model / "reuse_plan.html").read_text()
        self.assertNotRegex(page, r'(src|href)="http')
        self.assertRegex(page, r'<h1>[^<]*</h1>\s*<p class="verdict"><strong>Reuse: off for one image in a prompt')
        self.assertEqual(page.count("<svg"), 0)  # nothing was profiled
        n, needed, value, most = re.search(r"one image in a prompt: (\d+) of about (\d+) questions <progress value=\"(\d+)\" max=\"(\d+)\">", page).groups()
        self.assertEqual((int(n), n, needed), (one["cases"], value, most))
        self.assertGreaterEqual(int(needed), 299)
        self.assertFalse((model / "reuse_plan.json.partial").exists())
        self.assertEqual(several["cases"], plan["several_images_looking"]["cases"])
        out = self.ok("verify", "reuse", "-m", model, "--data", DATA, "--compare", "4")
        self.assertRegex(out, r"^Reuse: off for one image in a prompt\. \d of \d test answers .*\nReuse: off for several images in a prompt\. \d of \d ")
        # Each question counts once.
        few = self.write("few.jsonl", "".join(DATA.read_text().splitlines(keepends=True)[:3]).replace("pages/", str(DATA.parent / "pages") + "/"))
        self.ok("tune", "reuse", "-m", model, "--data", few, "--compare", "100", "--profile", "0")
        plan = json.loads((model / "reuse_plan.json").read_text())
        self.assertEqual(plan["one_image"]["cases"] + plan["several_images"]["cases"], 3)

    def test_layers_are_profiled_if_the_schedule_fails(self):
        plan = self.folder / "plan.json"
        # Questions that tinydoc was not trained for: answers change, and right ones are not known.
        self.ok("tune", "reuse", "-m", MODEL, "--images", DATA.parent / "pages", "--target", "0", "--several", "", "--compare", "30",
                "--profile", "1", "--max-tokens", "24", "-o", plan)
        page = plan.with_suffix(".html").read_text()
        self.assertEqual(page.count("<svg"), 3)  # S_i(r), and the errors of K and V
        self.assertRegex(page, "greedy  loss .*\nexact   loss ")
        self.assertIn("plan by profile, several", page)
        self.assertNotIn("scores", json.loads(plan.read_text())["one_image"])

    def test_an_interrupted_tuning_ends_at_once_and_resumes(self):
        plan = self.folder / "plan.json"
        tune = [VLCACHE, "tune", "reuse", "-m", str(MODEL), "--data", str(DATA), "--profile", "1", "--compare", "6", "-o", str(plan)]
        partial = self.folder / "plan.json.partial"
        lines = lambda: partial.read_text().splitlines() if partial.exists() else []
        p = subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and len(lines()) < 3:
            pass
        begin = time.monotonic()
        p.send_signal(signal.SIGINT)
        out, said = p.communicate()
        self.assertLess(time.monotonic() - begin, 5)  # a second, on a machine that is not loaded
        self.assertEqual((p.returncode, out), (130, ""))
        self.assertFalse(plan.exists())
        before = {(line["what"], line["case"]): line for line in map(json.loads, lines()[1:])}
        self.assertIn("full", [what for what, _ in before])
        with partial.open("a") as file:
            file.write('{"what": "full", "ca')  # as a full disk leaves it
        p = subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and len(lines()) < len(before) + 4:
            pass
        p.kill()
        p.communicate()
        now = {(line["what"], line["case"]): line for line in map(json.loads, lines()[1:-1])}
        self.assertEqual({key: now[key] for key in before}, before)  # its times included: measured once
        self.ok(*tune[1:])
        whole = json.loads(plan.read_text())
        self.assertFalse(partial.exists())
        plan.unlink()
        self.ok(*tune[1:])
        again = json.loads(plan.read_text())
        for kind in "one_image", "several_images":
            self.assertEqual({k: v for k, v in again[kind].items() if k != "floor"}, {k: v for k, v in whole[kind].items() if k != "floor"})

    def test_progress_on_a_terminal_and_a_pipe(self):
        primary, secondary = pty.openpty()
        tune = [VLCACHE, "tune", "reuse", "-m", str(MODEL), "--data", str(DATA), "-o", str(self.folder / "plan.json")]
        p = subprocess.Popen(tune, stdout=subprocess.DEVNULL, stderr=secondary)
        os.close(secondary)
        shown = b""
        while b"%" not in shown:
            shown += os.read(primary, 1000)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(), 130)
        os.close(primary)
        self.assertRegex(shown.decode(), r"(loading|comparing answers) \[#* *\] +\d+%")
        with subprocess.Popen([*tune, "--seed", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
            line = p.stderr.readline()  # the first comes after ten seconds
            p.send_signal(signal.SIGINT)
            p.stderr.read()
        self.assertRegex(line, r"^[a-z ,]+: \d+ %")

    def test_the_gate(self):
        model = self.copy_model()
        path = model / "reuse_plan.json"
        plan = json.loads(path.read_text())
        n = 299
        plan["one_image"] = {"cases": n, "equal": n, "kl": 0}
        path.write_text(json.dumps(plan))

        found, said = self.second(model)
        self.assertEqual((found["source"], found["recomputed_tokens"] > 0), ("ram", True))
        self.assertEqual(said, "")
        said = self.second(model, "--explain")[1]
        self.assertEqual(said.count("reuse: on for one image in a prompt, "), 1, said)  # not after each of two answers
        self.assertNotIn("299", said)
        self.assertIn("Reuse: on for one image in a prompt. 299 of 299 test answers stayed the same; at most 1 % change (95 %).", self.ok("info", "-m", model))

        few = {**plan, "one_image": {"cases": 10, "equal": 10, "kl": 0}}  # opened the gate once
        path.write_text(json.dumps(few))
        found, said = self.second(model, "--explain")
        self.assertEqual(found["source"], "computed")
        self.assertIn("reuse: off for one image in a prompt, ", said)
        self.assertIn("Reuse: off for one image in a prompt. 10 of 10 test answers stayed the same; at most 26 % change (95 %), 1 % may. Not enough questions: about 289 more",
                      self.ok("info", "-m", model))

        path.write_text(json.dumps({**plan, "one_image": {"cases": n, "equal": n // 2, "kl": 0}}))
        found, said = self.second(model)
        self.assertEqual((found["source"], said), ("computed", ""))  # no line about the plan unless asked for
        found, said = self.second(model, "--explain")
        self.assertIn("reuse: off for one image in a prompt, ", said)
        self.assertEqual(self.second(model, "--reuse-margin", "0.6")[0]["source"], "ram")
        found, said = self.second(model, "--reuse", "vlcache", "--explain")  # asked for by name
        self.assertEqual(found["source"], "ram")
        self.assertIn(f"{n // 2} of {n}", said)
        # Known right answers count instead, and a noise floor is allowed besides.
        scored = {"cases": n, "equal": n // 2, "kl": 0, "scores": {"cases": n, "right": n, "lost": 0, "gained": 0}}
        path.write_text(json.dumps({**plan, "one_image": scored}))
        self.assertEqual(self.second(model)[0]["source"], "ram")
        noisy = {"cases": n, "equal": n - 5, "kl": 0, "floor": {"avx2": {"cases": n, "changed": 10}}}
        path.write_text(json.dumps({**plan, "one_image": noisy}))
        self.assertEqual(self.second(model)[0]["source"], "ram")
        path.write_text(json.dumps({**plan, "one_image": {**noisy, "floor": {}}}))
        self.assertEqual(self.second(model)[0]["source"], "computed")

        path.write_text(json.dumps({**plan, "model": "another"}))
        found, said = self.second(model, "--explain")
        self.assertEqual(found["source"], "computed")
        self.assertIn("a plan for another model", said)
        self.fails("run", "-m", model, "--reuse-plan", path, "Q", says="a plan for another model")

        path.write_text("{")
        found, said = self.second(model, "--explain")
        self.assertEqual(found["source"], "computed")
        self.assertIn("reuse_plan.json", said)

        path.unlink()
        found, said = self.second(model)
        self.assertEqual((found["source"], said), ("computed", ""))
        self.assertIn("there is no", self.second(model, "--explain")[1])
        self.assertIn("there is no", self.ok("info", "-m", model))
        found, said = self.second(model, "--reuse", "vlcache", "--explain")
        self.assertEqual(found["source"], "ram")
        self.assertIn("nothing was measured", said)

    def test_a_plan_of_other_weights_is_refused(self):
        model = self.copy_model()
        path = model / "reuse_plan.json"
        plan = {**json.loads(path.read_text()), "one_image": {"cases": 299, "equal": 299, "kl": 0}}  # measured with dense weights
        path.write_text(json.dumps(plan))
        int4, bytes_too = ("--weights", "int4"), ("--weights", "int4", "--activations", "int8", "--dtype", "bf16")
        self.assertEqual(self.second(model, "--weights", "dense")[0]["source"], "ram")
        found, said = self.second(model, *int4, "--explain")
        self.assertEqual(found["source"], "computed")
        self.assertIn("the plan was measured with other weights (dense) than these (int4, quantiser", said)
        self.fails("run", "-m", model, "--reuse-plan", path, *int4, "Q", says="measured with other weights (dense)")
        self.assertIn("measured with other weights (dense) than these (int4, quantiser", self.ok("info", "-m", model, *int4))
        # A plan is of the weights that it is measured with.
        self.ok("tune", "reuse", "-m", model, "--data", DATA, "--compare", "2", "--profile", "0", "--max-tokens", "4", *int4, "--kv-codec", "int8")
        measured = json.loads(path.read_text())
        weights = measured["weights"]
        self.assertEqual(measured["kv_codec"], "int8")
        self.assertRegex(weights, r"^int4, quantiser \d+$")
        path.write_text(json.dumps({**plan, "weights": weights}))
        self.assertEqual(self.second(model, *int4)[0]["source"], "ram")
        for other in ((), ("--weights", "int8"), bytes_too, (*int4, "--vision-weights", "int8")):
            found, said = self.second(model, *other, "--explain")
            self.assertEqual(found["source"], "computed", other)
            self.assertIn(f"measured with other weights ({weights})", said)
        path.write_text(json.dumps({**plan, "weights": "int4, quantiser 0"}))
        self.assertEqual(self.second(model, *int4)[0]["source"], "computed")

    def test_a_plan_of_another_codec_is_refused(self):
        model = self.copy_model()
        path = model / "reuse_plan.json"
        plan = {**json.loads(path.read_text()), "one_image": {"cases": 299, "equal": 299, "kl": 0}}  # names no codec: values
        path.write_text(json.dumps(plan))
        says = "the plan was measured with KV codec bf16, here it is int8"
        found, said = self.second(model, "--kv-codec", "int8", "--explain")
        self.assertEqual((found["source"], found["reason"]), ("computed", f"only what is exact is reused: {says}"))
        self.assertIn(f"images are reused only where that is exact: {says} (`vlcache tune reuse --kv-codec int8` measures one)", said)
        path.write_text(json.dumps({**plan, "kv_codec": "int8"}))
        self.assertEqual(self.second(model, "--kv-codec", "int8")[0]["source"], "ram")
        self.assertIn("measured with KV codec int8, here it is bf16 (`vlcache tune reuse --kv-codec bf16`", self.ok("info", "-m", model))

    def test_a_plan_applies_only_to_measured_cases(self):
        model = self.copy_model()
        path = model / "reuse_plan.json"
        plan = json.loads(path.read_text())
        two = {"prompt": QUESTION, "images": [str(PAGE), str(MODEL / "demo/table.png")]}
        two = json.dumps(two) + "\n" + json.dumps({**two, "system": "Read."}) + "\n"
        plan["one_image"] = {"cases": 300, "equal": 300, "kl": 0}
        plan["shares"] = [0.02] * len(plan["shares"])
        bad, good = {"cases": 300, "equal": 250, "kl": 0}, {"cases": 300, "equal": 300, "kl": 0}
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
                            (("--reuse-plan", "/does/not/exist"), "/does/not/exist"), (("--reuse", "mpic:r=1"), "unknown parameter 'r'"),
                            (("--reuse-bound", "0.99"), "--reuse-margin")):
            self.fails("run", "-m", MODEL, *flags, "Q", says=says)
        self.fails("tune", "reuse", "-m", MODEL, says="--data FILE.jsonl or --images DIR, found neither")
        self.fails("tune", "reuse", "-m", MODEL, "--images", self.folder, says="two images at least")
        self.fails("verify", "reuse", "-m", MODEL, "--data", DATA, "--reuse-plan", "/does/not/exist", says="/does/not/exist")


if __name__ == "__main__":
    unittest.main()
