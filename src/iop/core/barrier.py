"""The barrier's decision: has a mutation reached every Edge, or what is still awaited (E10, K14).

Nothing here waits. Whoever waits reads the session rows again, asks again, and closes what never answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from iop.records import Barrier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iop.records import EdgeSession


class Standing(Enum):
    """What one session is to one mutation; exactly one of these."""

    #: It said that it acts on the mutation.
    ACKNOWLEDGED = auto()
    #: It said so, but named runs whose Node gave no word.
    UNCONFIRMED = auto()
    #: It may hold leases from before, and can say nothing any more.
    CUT_OFF = auto()
    #: It lasts, may lease, and has not said anything yet.
    AWAITED = auto()
    #: It cannot act on what was before: it ended too long ago, or never was ready, for which it must acknowledge the
    #: newest generation.
    HARMLESS = auto()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The barrier is not reached: ids of the sessions that must acknowledge or be cut off."""

    sessions: frozenset[str]


def standing(session: EdgeSession, generation: int, now_ms: int, window_ms: int, *, running: bool) -> Standing:
    """What ``session`` is to the mutation that made ``generation``; the parameters are those of :func:`barrier`."""
    lasts = session.ended_ms == 0
    if not lasts and session.ended_ms + window_ms <= now_ms:
        return Standing.HARMLESS
    if session.acknowledged >= generation:
        return Standing.UNCONFIRMED if session.unconfirmed else Standing.ACKNOWLEDGED
    if not session.ready:
        return Standing.HARMLESS
    return Standing.AWAITED if lasts and running else Standing.CUT_OFF


def barrier(
    sessions: Iterable[EdgeSession],
    generation: int,
    committed_ms: int,
    now_ms: int,
    window_ms: int,
    *,
    running: bool,
) -> Waiting | Barrier:
    """Decide whether the mutation that made ``generation`` has reached every Edge.

    :param sessions: all that last and all that ended within the window.
    :param committed_ms: when the mutation committed, Unix milliseconds.
    :param now_ms: the present, Unix milliseconds.
    :param window_ms: lease TTL + skew in milliseconds: how long a session that ended may still hold leases.
    :param running: whether any Control Plane runs; if none does, no session lasts, whatever its row says.
    """
    found: dict[Standing, set[str]] = {each: set() for each in Standing}
    for session in sessions:
        found[standing(session, generation, now_ms, window_ms, running=running)].add(session.session)
    if found[Standing.AWAITED]:
        return Waiting(frozenset(found[Standing.AWAITED]))
    return Barrier(
        generation=generation,
        acknowledged=len(found[Standing.ACKNOWLEDGED]),
        cut_off=len(found[Standing.CUT_OFF]),
        unconfirmed=len(found[Standing.UNCONFIRMED]),
        effective_ms=committed_ms + window_ms,
    )
