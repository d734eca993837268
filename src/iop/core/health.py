"""Whether a provider can be reached, from what requests that were given to it found (rule S17)."""

from __future__ import annotations

from typing import Final

#: Failures in a row after which a provider counts as unreachable.
FAILURES: Final = 3
#: Seconds until an unreachable provider is tried again, the first time and at most.
FIRST_PROBE_SECONDS: Final = 10.0
LAST_PROBE_SECONDS: Final = 60.0


class Health:
    """What is known of one provider. Times are seconds of boot time; any call may come in any state.

    Whoever uses the provider is named by any object, so that the word of a probe is told from that of a request that
    was given to it before.
    """

    __slots__ = ("_due", "_failures", "_pause", "_probe")

    def __init__(self) -> None:
        self._failures = 0
        self._pause = 0.0
        self._due = 0.0
        self._probe: object = None

    @property
    def is_reachable(self) -> bool:
        """Whether it is given requests as usual."""
        return self._failures < FAILURES

    def is_due(self, now: float) -> bool:
        """Whether it is unreachable and one request should try it."""
        return not self.is_reachable and now >= self._due

    def seconds_until_due(self, now: float) -> float:
        """Seconds until then, if it is unreachable."""
        return max(0.0, self._due - now)

    def try_with(self, probe: object, now: float) -> None:
        """``probe`` tries it; nobody else does until there is a word of it, or should have been one for long.

        One that is connected has no word before its response begins: it must not keep everybody else out until then.
        """
        self._probe = probe
        self._pause = min(2 * self._pause, LAST_PROBE_SECONDS)
        self._due = now + self._pause

    def reached(self) -> None:
        """It answered somebody."""
        self._failures = 0
        self._probe = None

    def failed(self, by: object, now: float) -> None:
        """``by`` could not connect to it. While it is unreachable only the probe's word counts."""
        if self.is_reachable:
            self._failures += 1
            self._pause = FIRST_PROBE_SECONDS
        elif by is self._probe:
            self._probe = None
        else:
            return
        self._due = now + self._pause

    def done(self, by: object) -> None:
        """``by`` ended; if it was the probe and found nothing out, the next request may try."""
        if by is self._probe:
            self._probe = None
            self._due = 0.0
