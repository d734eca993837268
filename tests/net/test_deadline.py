"""Absolute deadlines that cost nothing to move."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from iop.net.deadline import Deadline
from iop.testing.clock import FakeClock


class DeadlineTests(SynchronousTestCase):
    """P34."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.expired: list[float] = []
        self.deadline = Deadline(self.clock, lambda: self.expired.append(self.clock.boot()))

    def timers(self) -> int:
        return len(self.clock.reactor.getDelayedCalls())

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)

    def test_once(self) -> None:
        """P34: it passes once, at its time."""
        self.deadline.set(3)
        self.pass_seconds(10)
        self.assertEqual((self.expired, self.timers()), ([3.0], 0))

    def test_moved(self) -> None:
        """Later or earlier, the last word counts, over one timer."""
        self.deadline.set(3)
        self.deadline.set(6)
        self.assertEqual(self.timers(), 1)
        self.pass_seconds(5)
        self.assertEqual(self.expired, [])
        self.pass_seconds(5)
        self.deadline.set(100)
        self.deadline.set(12)
        self.assertEqual(self.timers(), 1)
        self.pass_seconds(100)
        self.assertEqual((self.expired, self.timers()), ([6.0, 12.0], 0))

    def test_cleared_and_set_again(self) -> None:
        """A cleared one does not pass; one set again does."""
        self.deadline.set(3)
        self.deadline.clear()
        self.pass_seconds(2)
        self.deadline.set(9)
        self.pass_seconds(6)
        self.assertEqual(self.expired, [])
        self.pass_seconds(1)
        self.assertEqual(self.expired, [9.0])

    def test_past(self) -> None:
        """A time that is over already passes at the next turn, not within ``set``."""
        self.clock.advance(5)
        self.deadline.set(1)
        self.assertEqual(self.expired, [])
        self.clock.advance(0)
        self.assertEqual(self.expired, [5.0])

    def test_stopped(self) -> None:
        """Stopping lets go of the timer, and is safe to repeat."""
        self.deadline.set(3)
        self.deadline.stop()
        self.deadline.stop()
        self.assertEqual(self.timers(), 0)
        self.deadline.set(4)
        self.pass_seconds(4)
        self.assertEqual(self.expired, [4.0])

    def test_set_from_within(self) -> None:
        """What is called when it passes may set it again."""

        def again() -> None:
            self.expired.append(self.clock.boot())
            deadline.set(self.clock.boot() + 2)

        deadline = Deadline(self.clock, again)
        deadline.set(2)
        self.pass_seconds(6)
        self.assertEqual(len(self.expired), 3)
        deadline.stop()
