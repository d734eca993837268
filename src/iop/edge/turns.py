"""Work too long to share a turn of the event loop: one piece a turn, and everybody else is served in between."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from iop.interfaces import IClock


class Turns:
    """Pieces of work in the order they came.

    Their number is bounded by whoever brings them, one per connection, and has them forgotten when that is gone.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._waiting: OrderedDict[object, Callable[[], object]] = OrderedDict()
        #: Whether a turn was asked for, or is going on.
        self._busy = False

    def add(self, work: Callable[[], object]) -> Callable[[], object]:
        """Do ``work`` in a turn of its own.

        :returns: call it to have ``work`` forgotten if it was not done yet, with all that it holds.
        """
        place = object()
        self._waiting[place] = work
        if not self._busy:
            self._ask()
        return partial(self._waiting.pop, place, None)

    def _ask(self) -> None:
        self._busy = True
        self._clock.call_later(0, self._next)

    def _next(self) -> None:
        try:
            if self._waiting:
                _, work = self._waiting.popitem(last=False)
                work()
        finally:
            self._busy = False
            if self._waiting:
                self._ask()
