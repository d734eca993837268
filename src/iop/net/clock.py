"""The clock of a running process."""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from iop.interfaces import IClock


@implementer(IClock)
class ReactorClock:
    """Boot time of the kernel, and the wall clock as it stood when this object was made (P45).

    :param reactor: where delayed calls wait. It counts without suspended time, so after a suspend a call may come late;
        whoever gets it asks :meth:`boot` how late.
    """

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._wall_at_boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def boot(self) -> float:
        """Seconds since boot, suspended time included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        """Unix milliseconds, counted by boot time from the one sample."""
        return (self._wall_at_boot_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000

    def call_later(self, seconds: float, what: Callable[[], object]) -> IDelayedCall:
        """Call ``what`` once, ``seconds`` from now."""
        return self._reactor.callLater(seconds, what)
