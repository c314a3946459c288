"""Policies that compress KV while all pages are in use: no request is lost, and each answer is the one that it has alone."""
import sys

from program import ROOT, SHADOWED, VLCACHE, ProgramTest

sys.path.insert(0, str(ROOT / "studies/load"))
import crowd  # noqa: E402


class Pressure(ProgramTest):
    def test_crowds_lose_no_request(self):
        if SHADOWED:
            self.skipTest("too slow under ThreadSanitizer")
        preempted = 0
        for name, most in (("auto", 8), ("m-rope", 16)):
            said, errors = crowd.crowd(VLCACHE, name, 0, most)
            self.assertEqual((said["lost"], said["wrong"], said["different"]), (0, 0, 0), errors)
            preempted += said["preemptions"]
        self.assertGreater(preempted, 0)  # pages did run out
