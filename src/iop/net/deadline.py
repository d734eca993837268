"""One absolute point in time after which something is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from iop.interfaces import IClock

#: Firing this much early counts as on time: sums of floats and the two kernel clocks differ by less.
_TOLERANCE_SECONDS: Final = 0.001


class Deadline:
    """A deadline that may move with every request: setting or clearing it costs an assignment, not a timer.

    The timer beneath is only touched when the deadline moves forward past it; when it fires early it waits again.

    :param clock: where time comes from.
    :param expired: called once each time a deadline that was set passes.
    """

    __slots__ = ("_at", "_call", "_clock", "_due", "_expired")

    def __init__(self, clock: IClock, expired: Callable[[], object]) -> None:
        self._clock = clock
        self._expired = expired
        self._at: float | None = None
        self._call: IDelayedCall | None = None
        self._due = 0.0

    def set(self, at: float) -> None:
        """Expire at ``at`` seconds of boot time, in place of what was set before."""
        self._at = at
        if self._call is None:
            self._wait(at)
        elif at < self._due:
            self._call.cancel()
            self._wait(at)

    def sooner(self, at: float) -> None:
        """Expire at ``at``, unless that is set already or something earlier is."""
        if self._at is None or at < self._at:
            self.set(at)

    def clear(self) -> None:
        """Do not expire."""
        self._at = None

    def stop(self) -> None:
        """Do not expire, and let go of the timer."""
        self._at = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _wait(self, at: float) -> None:
        self._due = at
        self._call = self._clock.call_later(max(at - self._clock.boot(), 0.0), self._fired)

    def _fired(self) -> None:
        self._call = None
        at = self._at
        if at is None:
            return
        if at - self._clock.boot() > _TOLERANCE_SECONDS:
            self._wait(at)
        else:
            self._at = None
            self._expired()
