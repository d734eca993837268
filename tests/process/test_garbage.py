"""What is spared the garbage collector."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from iop.process.garbage import spare_what_is_there


class GarbageTests(SynchronousTestCase):
    """Objects from before and from after."""

    def setUp(self) -> None:
        self.addCleanup(gc.unfreeze)

    def test_what_is_there_is_looked_at_no_more(self) -> None:
        """A list that exists is none of the collector's any more; one that is made later is."""
        before: list[object] = [[]]
        self.assertTrue(any(each is before for each in gc.get_objects()))
        spare_what_is_there()
        after: list[object] = [[]]
        watched = gc.get_objects()
        self.assertFalse(any(each is before for each in watched))
        self.assertTrue(any(each is after for each in watched))

    def test_a_cycle_stays_until_the_next_time(self) -> None:
        """One that was spared and that nobody refers to any more is gone with the next call, so none add up."""
        gone: list[str] = []

        class Cycle:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                gone.append("gone")

        kept = [Cycle()]
        spare_what_is_there()
        kept.clear()
        gc.collect()
        self.assertEqual(gone, [])
        spare_what_is_there()
        self.assertEqual(gone, ["gone"])
