"""Work that is too long for one turn of the event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iop.interfaces import IClock

#: How long everybody else waits meanwhile, and a step.
SLICE_SECONDS: Final = 0.005


async def in_slices(clock: IClock, steps: Iterator[None]) -> None:
    """Go through ``steps``, with a turn for everybody else every few milliseconds.

    The first slice is done at once, so that what is short costs no turn.
    """
    while True:
        end = clock.boot() + SLICE_SECONDS
        for _ in steps:
            if clock.boot() >= end:
                break
        else:
            return
        await later(clock)


def later(clock: IClock, seconds: float = 0.0) -> Deferred[None]:
    """Fires after ``seconds``, at any rate not before everybody else had a turn."""
    turn: Deferred[None] = Deferred()
    clock.call_later(seconds, partial(turn.callback, None))
    return turn
