"""`vlcache simulate`: a trace through the prefix tree."""
import json

from program import ProgramTest, run


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
