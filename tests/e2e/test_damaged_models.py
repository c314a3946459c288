"""Models with damaged files, some of the many that tools/damage_models.py asks: an answer, or one line that names the file or the key."""
import unittest

from program import SHADOWED, VLCACHE
from damaged_models import DamagedModel, models


@unittest.skipIf(SHADOWED, "ThreadSanitizer needs more memory than the runs may take")
class DamagedModels(unittest.TestCase):
    def test_some_of_every_kind(self):
        ends = []
        for seed in range(2 * len(models())):
            damaged = DamagedModel(models()[seed % len(models())], seed)
            with self.subTest(str(damaged)):
                end = damaged.ask(VLCACHE)
                self.assertEqual(end.fault, "", end.stderr)
                ends.append(end.returncode)
        self.assertIn(0, ends)
        self.assertIn(2, ends)
