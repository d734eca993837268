"""Work too long to share a turn of the event loop: one piece a turn, and everybody else is served in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from iop.interfaces import IClock


class Turns:
    """Pieces of work in the order they came. Their number is bounded by whoever brings them: one per connection."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a turn of its own."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._clock.call_later(0, self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._clock.call_later(0, self._next)
