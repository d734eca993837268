"""The clock that tests move."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.interfaces import IClock
from iop.testing.clock import FakeClock


class FakeClockTests(SynchronousTestCase):
    def test_it_is_a_clock(self) -> None:
        verifyObject(IClock, FakeClock())

    def test_only_advance_moves_it(self) -> None:
        clock = FakeClock(wall_ms=1_000_000)
        called: list[int] = []
        clock.call_later(1.5, lambda: called.append(clock.wall_ms()))
        self.assertEqual((clock.boot(), clock.wall_ms()), (0.0, 1_000_000))
        clock.advance(1.0)
        self.assertEqual(called, [])
        clock.advance(0.5)
        self.assertEqual((clock.boot(), called), (1.5, [1_001_500]))

    def test_wall_moves_alone(self) -> None:
        """P45: a machine whose wall clock is off, while boot time stays true."""
        clock = FakeClock()
        before = clock.wall_ms()
        clock.wall_at_boot_ms -= 3_600_000
        self.assertEqual((clock.boot(), clock.wall_ms()), (0.0, before - 3_600_000))
