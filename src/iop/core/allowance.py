"""How often somebody may do something: so many at once, then so many a second (security.md, Barrier)."""

from __future__ import annotations

from typing import Final

#: Who has not been seen for as long as it takes to regain everything is forgotten; looked for at this many.
_KEPT: Final = 1024


class Allowance:
    """A bucket of tokens for each name.

    :param per_second: what each name regains in a second.
    :param burst: what each name has at most.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        #: For each name, when its bucket is full again, in seconds of boot time.
        self._full_at: dict[str, float] = {}

    def take(self, name: str, now: float) -> float:
        """Take one of ``name``'s tokens.

        :param now: boot time in seconds.
        :returns: 0 if there was one, else the seconds until there is.
        """
        full_at = max(self._full_at.get(name, now), now)
        missing = (full_at - now) * self._per_second
        if missing > self._burst - 1:
            return (missing - (self._burst - 1)) / self._per_second
        if len(self._full_at) >= _KEPT:
            self._full_at = {each: full for each, full in self._full_at.items() if full > now}
        self._full_at[name] = full_at + 1 / self._per_second
        return 0.0
