"""How long the event loop kept everybody waiting."""

from __future__ import annotations

from iop.interfaces import IClock

#: How often it is looked at. A turn that is shorter is not seen.
TICK_SECONDS = 0.001


class Turns:
    """Ticks all the time, and remembers how late the latest tick was: about as long as the longest turn."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._longest = 0.0
        self._due = 0.0
        self._again()

    def longest_ms(self) -> float:
        """Of the turns that ended since this was asked last, in milliseconds."""
        longest, self._longest = self._longest, 0.0
        return longest * 1000

    def _again(self) -> None:
        self._due = self._clock.boot() + TICK_SECONDS
        self._clock.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._longest = max(self._longest, self._clock.boot() - self._due)
        self._again()
