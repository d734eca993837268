"""The clock of a process."""

from __future__ import annotations

import time

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.interfaces import IClock
from iop.net.clock import ReactorClock


class ReactorClockTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.boot_ns = 5_000_000_000
        self.wall_ns = 1_800_000_000_000_000_000
        self.patch(time, "clock_gettime_ns", self.kernel)
        self.patch(time, "clock_gettime", lambda which: self.kernel(which) / 1e9)
        self.patch(time, "time_ns", lambda: self.wall_ns)
        self.reactor = Clock()
        self.clock = ReactorClock(self.reactor)

    def kernel(self, which: int) -> int:
        """The kernel's boot time, and no other clock of it."""
        self.assertEqual(which, time.CLOCK_BOOTTIME)
        return self.boot_ns

    def test_interface(self) -> None:
        verifyObject(IClock, self.clock)

    def test_boot_goes_on(self) -> None:
        """P45: boot time is the kernel's, suspend included."""
        self.assertEqual(self.clock.boot(), 5.0)
        self.boot_ns += 3_600_000_000_000
        self.assertEqual(self.clock.boot(), 3605.0)

    def test_wall_is_sampled_once(self) -> None:
        """P45: the host's wall clock moved by an hour, either way, moves nothing here."""
        self.assertEqual(self.clock.wall_ms(), 1_800_000_000_000)
        for step_ns in (3_600_000_000_000, -2 * 3_600_000_000_000):
            self.wall_ns += step_ns
            self.assertEqual(self.clock.wall_ms(), 1_800_000_000_000)
        self.boot_ns += 1_500_000_000
        self.assertEqual(self.clock.wall_ms(), 1_800_000_001_500)

    def test_calls_later(self) -> None:
        called: list[float] = []
        self.clock.call_later(2.0, lambda: called.append(self.reactor.seconds()))
        self.clock.call_later(1.0, lambda: called.append(-1.0)).cancel()
        self.reactor.advance(1.9)
        self.assertEqual(called, [])
        self.reactor.advance(0.1)
        self.assertEqual(called, [2.0])
