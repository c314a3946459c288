"""The packed file of a model that was quantised: `--packed-cache`, and `vlcache cache --packed`."""
import json
import os
import subprocess
import unittest

from program import MODEL, PAGE, VLCACHE, ProgramTest, run

QUESTION = "What is the TOTAL?"


class Packed(ProgramTest):
    def setUp(self):
        super().setUp()
        self.place = self.folder / "packed"

    def ask(self, *more, model=MODEL, place=None, env=None, weights="int4"):
        """What became of the packed file, the answer and the lines about the file."""
        p = run("run", "-m", model, "-i", PAGE, "--json", "--temperature", "0", "--max-tokens", "8", "--weights", weights, "--packed-cache",
                place or self.place, *more, QUESTION, env=env)
        self.assertEqual(p.returncode, 0, p.stderr)
        answer = json.loads(p.stdout)
        lines = [line for line in p.stderr.splitlines() if line.startswith("packed weights: ")]
        return answer["weights"]["packed_file"], answer, lines

    def files(self):
        return sorted(self.place.glob("*"))

    def test_the_second_start_reads_what_the_first_has_written(self):
        disk = ("--cache-disk", self.folder / "kv")  # whose records are found by the model's fingerprint
        state, built, lines = self.ask(*disk)
        self.assertEqual(state, "built")
        file, = self.files()
        self.assertEqual(len(lines), 1)
        self.assertIn(f"written to {file}", lines[0])
        self.assertEqual((file.stat().st_mode & 0o777, self.place.stat().st_mode & 0o777), (0o600, 0o700))
        state, found, lines = self.ask(*disk)
        self.assertEqual(state, "hit")
        self.assertEqual(len(lines), 1)
        self.assertIn(f"read from {file}", lines[0])
        self.assertEqual(found["token_ids"], built["token_ids"])
        self.assertEqual(found["weights"]["bytes"], built["weights"]["bytes"])
        self.assertEqual((built["caches"]["tiers"]["disk"]["hits"] > 0, found["caches"]["tiers"]["disk"]["hits"] > 0), (False, True))
        logits = {}
        for name, place in (("with", self.place), ("without", "off")):
            self.ok("logits", "-m", MODEL, "--weights", "int4", "--packed-cache", place, "-o", self.folder / name, QUESTION)
            logits[name] = (self.folder / name).read_bytes()
        self.assertEqual(logits["with"], logits["without"])
        state, off, lines = self.ask(place="off")
        self.assertEqual((state, lines, off["token_ids"]), ("off", [], built["token_ids"]))
        self.assertEqual(self.ask(weights="dense")[0], "off")
        self.assertEqual(self.ask(weights="int8")[0], "built")
        self.assertEqual(self.ask("--dtype", "f32")[0], "built")
        self.assertEqual(len(self.files()), 3)

    def test_another_model_or_a_damaged_file_is_quantised_again(self):
        model = self.copy_model()
        answer = self.ask(model=model)[1]["token_ids"]
        self.assertEqual(self.ask(model=MODEL)[0], "built")
        os.utime(model / "model.safetensors")
        state, again, lines = self.ask(model=model)
        self.assertEqual((state, again["token_ids"]), ("built", answer))
        self.assertIn("other contents of the model's files", lines[0])
        for at in (8, 5000, -20):
            for file in self.files():
                data = bytearray(file.read_bytes())
                data[at] ^= 0x10
                file.write_bytes(data)
            state, again, lines = self.ask(model=model)
            self.assertEqual((state, again["token_ids"]), ("built", answer))
            self.assertRegex(lines[0], r"\.vlw: .*; the model is quantised again$")
            self.assertEqual(self.ask(model=model)[0], "hit")
        for file in self.files():
            os.truncate(file, 10000)
        self.assertEqual([self.ask(model=model)[0] for _ in range(2)], ["built", "hit"])

    def test_a_file_that_another_user_may_have_written_is_packed_again(self):
        expected = self.ask()[1]["token_ids"]
        file, = self.files()
        self.place.chmod(0o777)  # as volumes are: the file counts
        self.assertEqual(self.ask()[0], "hit")
        changes = [(lambda: file.chmod(0o620), "its group may write to it"), (lambda: file.chmod(0o602), "others may write to it")]
        if os.geteuid() == 0:
            changes.append((lambda: os.chown(file, 65534, -1), "it belongs to user 65534, not to root"))
        for change, why in changes:
            for share in ((), ("--packed-share",)):
                change()
                state, again, lines = self.ask(*share)
                self.assertEqual((state, again["token_ids"]), ("built", expected))
                self.assertEqual(lines[0], f"packed weights: {file}: not trusted: {why}; the model is quantised again")
                self.assertEqual(self.ask(*share)[0], "hit")
                self.assertEqual((file.stat().st_mode & 0o777, file.stat().st_uid), (0o600, os.geteuid()))

    def test_what_the_program_writes_is_read_under_every_umask(self):
        for umask in (0, 0o002, 0o077):
            place = self.folder / f"umask-{umask}"
            ask = [VLCACHE, "run", "-m", MODEL, "--json", "--max-tokens", "1", "--weights", "int4", "--packed-cache", place, QUESTION]
            states = [json.loads(subprocess.run(list(map(str, ask)), capture_output=True, check=True, umask=umask).stdout)["weights"]["packed_file"] for _ in range(2)]
            self.assertEqual(states, ["built", "hit"], umask)

    @unittest.skipUnless(os.geteuid() == 0, "only root becomes another user")
    def test_another_user_uses_its_own_file_and_root_s(self):
        place = self.folder / "home"
        place.mkdir()
        for path in (self.folder, place):
            path.chmod(0o777)
        ask = [VLCACHE, "run", "-m", MODEL, "--json", "--max-tokens", "1", "--weights", "int4", "--packed-cache", place, QUESTION]

        def state(**who):
            p = subprocess.run(list(map(str, ask)), capture_output=True, text=True, **who)
            self.assertEqual(p.returncode, 0, p.stderr)
            return json.loads(p.stdout)["weights"]["packed_file"], p.stderr

        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        self.assertEqual([state(**nobody)[0] for _ in range(2)], ["built", "hit"])
        file, = place.iterdir()
        found, said = state()  # root does not use it
        self.assertEqual(found, "built")
        self.assertIn("not trusted: it belongs to user 65534", said)
        file.chmod(0o644)
        self.assertEqual(state(**nobody)[0], "hit")  # root's

    def test_weights_are_shared(self):
        state, own, _ = self.ask()
        self.assertEqual((state, own["weights"]["shared"]), ("built", False))
        file, = self.files()
        state, shared, lines = self.ask("--packed-share")
        self.assertEqual((state, shared["weights"]["shared"], shared["token_ids"]), ("hit", True, own["token_ids"]))
        self.assertEqual(len(lines), 1)
        self.assertIn(f"shared with other processes, mapped from {file}", lines[0])
        data = bytearray(file.read_bytes())
        data[5000] ^= 0x10
        file.write_bytes(data)
        state, again, lines = self.ask("--packed-share")
        self.assertEqual((state, again["weights"]["shared"], again["token_ids"]), ("built", True, own["token_ids"]))
        self.assertEqual([line.split(": ")[1].split()[0] for line in lines], [str(file), "written", "shared"])
        info = ("info", "-m", MODEL, "--json", "--packed-cache", self.place, "--packed-share")
        self.assertEqual([self.json(*info, "--weights", form)["weights_shared"] for form in ("int4", "dense")], [True, False])
        state, dense, lines = self.ask("--packed-share", weights="dense")
        self.assertEqual((state, dense["weights"]["shared"]), ("off", False))
        self.assertRegex(lines[0], "not shared: only a checkpoint that is quantised")
        self.fails("run", "-m", MODEL, "--packed-cache", "off", "--packed-share", QUESTION, says="there is no file to share")

    def test_where_nothing_can_be_written(self):
        (self.folder / "file").write_text("")
        state, _, lines = self.ask(place=self.folder / "file" / "packed")
        self.assertEqual(state, "off")
        self.assertEqual(len(lines), 1)
        self.assertRegex(lines[0], "not stored: .*Not a directory")
        if os.geteuid() != 0:
            os.mkdir(self.place, 0o500)
            state, _, lines = self.ask()
            self.assertEqual((state, self.files()), ("off", []))
            self.assertRegex(lines[0], "not stored: .*Permission denied")
        state, _, lines = self.ask(place=f"{self.folder / 'small'},100kB")
        self.assertEqual((state, list((self.folder / "small").iterdir())), ("off", []))
        self.assertRegex(lines[0], "not stored: more than the 0.00 GB that .*small may hold")
        self.fails("run", "-m", MODEL, "--packed-cache", "x,lots", QUESTION, says="--packed-cache: expected DIR or DIR,BYTES")
        self.assertFalse((self.folder / "random").exists())
        self.ok("bench", "--random-weights", MODEL / "config.json", "--weights", "int8", "--packed-cache", self.folder / "random", "-p", "4", "-n", "0", "-r", "1")
        self.assertFalse((self.folder / "random").exists())

    def test_the_users_cache_folder_is_the_default(self):
        ask = ("run", "-m", MODEL, "--json", "--max-tokens", "1", "--weights", "int8", QUESTION)
        for env, place in (({"XDG_CACHE_HOME": str(self.folder / "xdg"), "HOME": ""}, "xdg"), ({"XDG_CACHE_HOME": "", "HOME": str(self.folder)}, ".cache")):
            env["VLCACHE_PACKED_CACHE"] = ""
            states = [self.json(*ask, env=env)["weights"]["packed_file"] for _ in range(2)]
            self.assertEqual(states, ["built", "hit"])
            self.assertEqual(len(list((self.folder / place / "vlcache/packed").iterdir())), 1)
        p = run(*ask, env={"XDG_CACHE_HOME": "", "HOME": "", "VLCACHE_PACKED_CACHE": ""})
        self.assertEqual(json.loads(p.stdout)["weights"]["packed_file"], "off")
        self.assertIn("packed weights: not stored: no home folder; --packed-cache DIR names a folder, --packed-cache off hides this line", p.stderr)

    def test_files_are_listed_and_cleared(self):
        packed = ("cache", "--packed", "--packed-cache", self.place)
        self.assertEqual(self.ok(*packed), "")
        self.ask()
        self.ask(weights="int8")
        lines = [json.loads(line) for line in self.ok(*packed, "--json").splitlines()]
        self.assertEqual({line["about"]["text"] for line in lines}, {"int4", "int8"})
        for line in lines:
            self.assertEqual((line["about"]["model"], line["bytes"], line["problem"]), (str(MODEL), os.stat(line["path"]).st_size, ""))
        os.truncate(lines[0]["path"], 100)
        os.utime(lines[0]["path"], (0, 0))
        shown = self.ok(*packed).splitlines()
        self.assertEqual(len(shown), 3)
        self.assertRegex(shown[1], rf"^\w{{12}} +\d+\.\d\d +\d s int[48] +auto +bf16 +{MODEL}$")
        self.assertRegex(shown[2], r" \d+ d .*truncated\?")
        self.assertRegex(self.ok(*packed, "--clear"), r"^2 packed files removed, \d+\.\d MiB\n$")
        self.assertEqual(self.files(), [])
        self.assertEqual(self.ask()[0], "built")
        self.fails("cache", says="expected ls, verify or clear with a folder or a URL, or --packed")


if __name__ == "__main__":
    unittest.main()
