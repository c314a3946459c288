"""`vlcache simulate`: a trace through caches, tiers and replicas; and the tool that writes traces with images."""
import json
import subprocess
import sys

from program import ROOT, ProgramTest, run


class Simulate(ProgramTest):
    def trace(self, *lines):
        return self.write("trace.jsonl", "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))

    def test_hits_by_capacity_and_order(self):
        requests = [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3]]
        name = self.trace(*({"timestamp": i, "input_length": 512 * len(r), "hash_ids": r} for i, r in enumerate(requests)))
        lines = [json.loads(line) for line in self.ok("simulate", name, "--capacity", "0,3").splitlines()]
        self.assertEqual([(x["policy"], x["capacity"]) for x in lines], [("lru", 0), ("gdsf", 0), ("lru", 3), ("gdsf", 3)])
        for x in lines:
            self.assertEqual(x["blocks"], 10)
            self.assertAlmostEqual(x["rate"], x["hits"] / 10)
        self.assertEqual(lines[0]["hits"], 5)
        self.assertLess(lines[2]["hits"], 5)

    def test_broken_lines_are_skipped_and_reported(self):
        p = run("simulate", self.trace({"input_length": 512, "hash_ids": [1]}, {"input_length": 512}, "nonsense"))
        self.assertEqual(p.returncode, 0)
        self.assertIn("line 2", p.stderr)
        self.assertIn("line 3", p.stderr)
        self.assertIn('"blocks":1', p.stdout)
        p = run("simulate", self.trace({"input_length": 512, "hash_ids": [1]}), "--block", "16")
        self.assertEqual(p.returncode, 2)
        self.assertIn("512 tokens are not 1 blocks of 16", p.stderr)

    def test_invalid_traces(self):
        self.fails("simulate", self.trace(""), says="no request")
        self.fails("simulate", self.folder / "nowhere.jsonl", says="nowhere.jsonl")
        line = {"input_length": 3, "hash_ids": [1, 2, 3]}
        self.fails("simulate", self.trace(line), "--block", 1, "--route", "image", says="requests with images")
        self.fails("simulate", self.trace(line), "--block", 1, "--route", "session", says="a session")
        self.fails("simulate", self.trace({"input_length": 5, "hash_ids": [1, 2], "images": [{"id": 1, "tokens": 2}]}), "--block", "3", says="divide a page of 64")

    def test_tiers_and_replicas(self):
        name = self.trace(*({"input_length": 2, "hash_ids": [1, 2], "session": i // 2} for i in range(8)))

        def hits(*flags):
            lru, gdsf = map(json.loads, self.ok("simulate", name, "--block", 1, "--capacity", 0, *flags).splitlines())
            self.assertEqual(lru["sources"], gdsf["sources"])
            self.assertEqual(lru["hits"], sum(lru["sources"].values()))
            return lru["sources"], lru.get("requests")
        self.assertEqual(hits(), ({"ram": 14, "disk": 0, "shared": 0}, None))
        self.assertEqual(hits("--replicas", 4), ({"ram": 8, "disk": 0, "shared": 0}, [2, 2, 2, 2]))
        self.assertEqual(hits("--replicas", 4, "--disk", 0), ({"ram": 8, "disk": 0, "shared": 0}, [2, 2, 2, 2]))
        self.assertEqual(hits("--replicas", 4, "--shared", 0, "--cache-prefixes", "always")[0], {"ram": 8, "disk": 0, "shared": 6})
        self.assertEqual(hits("--replicas", 4, "--shared", 0, "--cache-prefixes", "always", "--delay", 1)[0], {"ram": 8, "disk": 0, "shared": 4})
        self.assertEqual(hits("--replicas", 4, "--route", "prefix")[1].count(0), 3)

    def trace_of_pages(self, *flags):
        p = subprocess.run([sys.executable, ROOT / "studies/picture_trace.py", *map(str, flags)], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def test_a_trace_of_pages(self):
        text = self.trace_of_pages("--requests", 150, "--seed", 3)
        self.assertEqual(text, self.trace_of_pages("--requests", 150, "--seed", 3))
        self.assertNotEqual(text, self.trace_of_pages("--requests", 150, "--seed", 4))
        lines = [json.loads(line) for line in text.splitlines()]
        images = [image["id"] for line in lines for image in line["images"]]
        turns = [sum(line["session"] == session for line in lines) for session in {line["session"] for line in lines}]
        self.assertLessEqual(max(turns), 8)
        self.assertGreater(images.count(0), 3 * images.count(39))  # by Zipf's law
        for line in lines:
            for image in line["images"]:
                same = [other for other in lines if other["hash_ids"][: image["at"] + 256] == line["hash_ids"][: image["at"] + 256]]
                self.assertTrue(all(image in other["images"] for other in same))
        name, each = self.write("pages.jsonl", text), self.folder / "each.jsonl"

        def simulated(*flags):
            return json.loads(self.ok("simulate", name, "--block", 1, "--capacity", 5859, "--replicas", 2, "--each", each, *flags))
        alone = simulated()
        self.assertEqual((alone["policy"], alone["images"]["total"], alone["images"]["possible"]), ("gdsf", len(images), len(images) - len(set(images))))
        requests = [json.loads(line) for line in each.read_text().splitlines()]
        self.assertEqual([len(r["images"]) for r in requests], [len(line["images"]) for line in lines])
        self.assertEqual(sum(source != "computed" for r in requests for source in r["images"]), alone["images"]["found"])
        self.assertEqual([r["replica"] for r in requests], [i % 2 for i in range(150)])
        routed, shared, both = simulated("--route", "image"), simulated("--shared", 0), simulated("--route", "image", "--shared", 0)
        self.assertLess(alone["images"]["found"], min(routed["images"]["found"], shared["images"]["found"]))
        self.assertLessEqual(max(routed["images"]["found"], shared["images"]["found"]), both["images"]["found"])
        self.assertGreater(shared["images"]["sources"]["shared"], 0)
