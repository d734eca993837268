"""The fuzz targets hold for what fuzzing begins with, so that they still work when somebody fuzzes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS


class TargetTests(SynchronousTestCase):
    def test_seeds_pass(self) -> None:
        """Whole, cut off at the end, and with a byte too many."""
        self.assertEqual(seeds().keys(), TARGETS.keys())
        for name, given in seeds().items():
            for seed in given:
                for data in (seed, seed[: len(seed) // 2], seed + b"\xff"):
                    TARGETS[name](data)
