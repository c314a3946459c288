"""What outlives the process: `--cache-disk`, and `vlcache cache`."""
import json
import os
import shutil
import signal
import subprocess
import time

from program import MODEL, PAGE, VLCACHE, ProgramTest, run

OTHER = MODEL / "demo/table.png"
QUESTION = "What is the TOTAL?"


class Store(ProgramTest):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "cache"

    def ask(self, *more, model=MODEL, image=PAGE, reuse="vlcache", disk=None):
        return self.json("run", "-m", model, "-i", image, "--json", "--temperature", "0", "--max-tokens", "8", "--reuse", reuse,
                         "--cache-disk", disk or self.disk, *more, QUESTION)

    def source(self, *more, **kwargs):
        image, = self.ask(*more, **kwargs)["cache"]["images"]
        return image["source"], image["encoder"]

    def records(self):
        return sorted(self.disk.rglob("*.vlr"))

    def test_a_picture_is_there_in_the_next_run(self):
        first = self.ask()
        self.assertEqual(first["caches"]["tiers"]["disk"]["hits"], 0)
        again = self.ask()
        self.assertEqual(again["token_ids"], first["token_ids"])
        image, = again["cache"]["images"]
        self.assertEqual((image["source"], image["encoder"]), ("disk", "hit"))
        self.assertEqual(self.source(reuse="exact"), ("computed", "hit"))
        self.assertEqual(self.source(reuse="off"), ("computed", "computed"))
        self.assertEqual(self.source(image=OTHER), ("computed", "computed"))
        self.assertEqual(len(self.records()), 4)
        for path in self.records():
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            self.assertNotIn(QUESTION.encode(), path.read_bytes())
        out = self.ok("cache", "ls", self.disk)
        self.assertRegex(out, r"kv bf16 8x2x64\n")
        self.assertRegex(out, r"embeddings bf16 x256\n")
        self.assertEqual(len([json.loads(line) for line in self.ok("cache", "ls", self.disk, "--json").splitlines()]), 4)
        self.assertIn("2 records removed", self.ok("cache", "clear", self.disk, "--image", PAGE, "-m", MODEL))
        self.assertEqual(self.source(image=OTHER), ("disk", "hit"))
        self.assertEqual(self.source(), ("computed", "computed"))
        self.assertIn("4 records removed", self.ok("cache", "clear", self.disk))

    def test_the_same_name_with_another_picture_is_another_picture(self):
        name = self.folder / "page.png"
        shutil.copyfile(PAGE, name)
        self.ask(image=name)
        shutil.copyfile(OTHER, name)
        self.assertEqual(self.source(image=name), ("computed", "computed"))
        shutil.copyfile(PAGE, name)
        self.assertEqual(self.source(image=name), ("disk", "hit"))

    def test_a_model_of_other_weights_finds_nothing(self):
        self.ask()
        model = self.copy_model()
        self.assertEqual(self.source(model=model), ("disk", "hit"))  # a copy is the same model
        weights = bytearray((model / "model.safetensors").read_bytes())
        n_header = int.from_bytes(weights[:8], "little")
        tensors = json.loads(weights[8:8 + n_header])
        begin, _ = next(t["data_offsets"] for name, t in tensors.items() if "q_proj" in name and "vision" not in name)
        weights[8 + n_header + begin] ^= 1  # one bit of one weight: less than any fine-tune changes
        (model / "model.safetensors").write_bytes(weights)
        os.remove(model / "reuse_plan.json")  # which would say itself that it is another's
        self.assertEqual(self.source(model=model), ("computed", "computed"))
        self.assertEqual(self.source("--dtype", "f32"), ("computed", "computed"))
        self.assertEqual(self.source("--backend", "ref", "--dtype", "f32"), ("computed", "computed"))

    def test_damaged_records_are_computed_again(self):
        answer = self.ask()["token_ids"]
        for at in (3, 40, 150, 5000, -1):
            for path in self.records():
                data = bytearray(path.read_bytes())
                data[at] ^= 0x10
                path.write_bytes(data)
            found = self.ask()
            self.assertEqual(found["token_ids"], answer)
            image, = found["cache"]["images"]
            self.assertEqual(image["source"], "computed", at)
            self.assertRegex(image["reason"], "^disk: ")
            self.assertEqual(self.source(), ("disk", "hit"))  # written anew
        for path in self.records():
            os.truncate(path, 1000)
        self.assertEqual(self.ask()["token_ids"], answer)
        for path in self.records():
            os.truncate(path, path.stat().st_size - 1)
        out = self.ok("cache", "verify", self.disk)
        self.assertIn("0 records right, 2 wrong and removed", out)
        self.assertEqual(self.records(), [])

    def test_salts_part_tenants(self):
        self.ask("--cache-salt", "alice")
        self.assertEqual(self.source("--cache-salt", "bob"), ("computed", "computed"))
        self.assertEqual(self.source(), ("computed", "computed"))
        self.assertEqual(self.source("--cache-salt", "alice"), ("disk", "hit"))
        self.assertIn("other tenant", self.ok("cache", "ls", self.disk))
        self.assertIn("2 records right, 0 wrong and removed, 4 of another salt", self.ok("cache", "verify", self.disk))
        self.assertIn("2 records right", self.ok("cache", "verify", self.disk, "--cache-salt", "bob"))

    def test_a_time_to_live(self):
        self.ask()
        self.assertEqual(self.source("--cache-ttl", "1h"), ("disk", "hit"))
        time.sleep(1.1)
        self.assertEqual(self.source("--cache-ttl", "1s"), ("computed", "computed"))

    def test_a_folder_that_cannot_be_written_to(self):
        self.ask()
        answer = self.ask()["token_ids"]
        for path in self.records():
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.write_text("in the way")
        found = self.ask()
        self.assertEqual(found["token_ids"], answer)
        self.assertEqual(found["cache"]["images"][0]["source"], "computed")

    def test_a_limit_of_bytes(self):
        for image in (PAGE, OTHER):
            self.ask(disk=f"{self.disk},1300KB")
        size = sum(path.stat().st_size for path in self.records())
        self.assertGreater(size, 0)
        self.assertLess(size, 1300 * 1000)

    def test_killed_while_writing(self):
        answer = None
        for i in range(12):
            p = subprocess.Popen([VLCACHE, "run", "-m", str(MODEL), "-i", str(PAGE), "--reuse", "vlcache", "--cache-disk", str(self.disk),
                                  "--max-tokens", "8", QUESTION], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            p.stdout.read(1)  # the answer has begun: the image is being stored
            time.sleep(0.003 * i)
            p.send_signal(signal.SIGKILL)
            p.wait()
            p.stdout.close()
            found = self.ask()["token_ids"]
            answer = answer or found
            self.assertEqual(found, answer)
            shutil.rmtree(self.disk)
        self.ask()
        self.assertEqual([p for p in self.disk.rglob("*") if p.is_file() and p.suffix != ".vlr"], [])

    def test_processes_share_a_folder(self):
        args = [VLCACHE, "run", "-m", str(MODEL), "--requests", "-", "--reuse", "static:r=0", "--cache-disk", f"{self.disk},2MB", "--max-tokens", "4",
                "--cache-ram", "1MiB"]
        lines = "".join(json.dumps({"prompt": QUESTION, "images": [str(i)], "system": str(n)}) + "\n" for n in range(6) for i in (PAGE, OTHER))
        running = [subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        found = [p.communicate(lines, timeout=120) for p in running]
        for p, (out, err) in zip(running, found):
            self.assertEqual(p.returncode, 0, err)
            self.assertTrue(all("error" not in json.loads(line) for line in out.splitlines()))
        self.assertIn(" 0 wrong", self.ok("cache", "verify", self.disk))

    def test_bad_input(self):
        self.fails("run", "-m", MODEL, "--cache-disk", self.folder / "no/such", QUESTION, says="only its last part")
        self.fails("run", "-m", MODEL, "--cache-disk", PAGE, QUESTION, says="expected a directory")
        self.fails("run", "-m", MODEL, "--cache-disk", f"{self.disk},many", QUESTION, says="DIR,BYTES")
        self.fails("run", "-m", MODEL, "--cache-disk", self.disk, "--cache-ttl", "soon", QUESTION, says="90s, 15m, 12h or 30d")
        self.fails("cache", "ls", self.folder / "none", says="no such folder")
        self.fails("cache", "clear", self.folder, "--image", PAGE, says="-m DIR")


if __name__ == "__main__":
    import unittest
    unittest.main()
