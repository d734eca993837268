"""What a newer projection no longer allows is not begun any more when its Edge acknowledges it (E15, R11, P41)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from iop.core.fences import Pinned, changed
from iop.units import IN_FLIGHT_LIMIT, SKEW_CAP_SECONDS

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from iop.core.projection import Projection
    from iop.edge.authority import ILeases
    from iop.edge.leases import LeaseKey
    from iop.edge.runs import Run
    from iop.interfaces import IClock

_log = Logger()

#: Runs whose connection ended that are known one by one: all that eight Node connections can have.
ADRIFT_LIMIT: Final = 8 * IN_FLIGHT_LIMIT
#: This side does not know which skew is allowed, so it takes the most that may be.
_SKEW_MS: Final = int(SKEW_CAP_SECONDS * 1000)


@dataclass(eq=False, slots=True)
class _Watched:
    """A run that may not have been started yet.

    :ivar run: None once its connection ended: nobody can be asked about it any more.
    :ivar key: what its lease is good for.
    :ivar over_ms: Unix milliseconds from which on no Node starts it, its lease having ended.
    """

    run: Run | None
    pinned: Pinned
    key: LeaseKey
    over_ms: int

    def __lt__(self, other: _Watched) -> bool:
        return self.over_ms < other.over_ms


@dataclass(eq=False, slots=True)
class _Inquiry:
    """The runs whose Nodes one projection waits for.

    :ivar told: fires with how many runs, of this projection or earlier ones, are without a word.
    """

    runs: set[_Watched]
    told: Deferred[int]
    timer: IDelayedCall


class Revocation:
    """Ends what a newer projection no longer allows, as long as nothing of it was sent upstream.

    It knows the runs that may not have been started yet, from their second fence until their head, their end or their
    Node's word that they were. The end of a connection is no end of its runs: the Node may not have noticed. They are
    known, or from :data:`ADRIFT_LIMIT` on counted, until the Node registered again or their leases are over.

    :param word_seconds: how long a projection waits for the Nodes' words.
    """

    def __init__(self, leases: ILeases, clock: IClock, word_seconds: float) -> None:
        self._leases = leases
        self._clock = clock
        self._word_seconds = word_seconds
        # dicts for their order: that of opening
        self._unasked: dict[_Watched, None] = {}
        self._unanswered: dict[_Watched, None] = {}
        #: A heap of those without a connection; each is among the unasked or the unanswered as well.
        self._adrift: list[_Watched] = []
        #: How many more there are, whatever they were opened for, and until when.
        self._crowd = 0
        self._crowd_over_ms = 0
        self._inquiries: list[_Inquiry] = []

    @property
    def unanswered(self) -> int:
        """How many runs may still start with what is no longer allowed, since their Nodes have not answered."""
        self._let_go()
        return self._count()

    def watch(self, run: Run, pinned: Pinned, key: LeaseKey, expires_ms: int) -> Callable[[bool], None]:
        """Know of a run that was opened for ``pinned``.

        :param key: what the run's lease is good for.
        :param expires_ms: when that lease ends, in Unix milliseconds.
        :returns: to be called at the run's head or end, with whether that was the end of its connection.
        """
        watched = _Watched(run, pinned, key, expires_ms + _SKEW_MS)
        self._unasked[watched] = None
        return partial(self._over, watched)

    def proved(self, node: str, public_key: bytes) -> None:
        """``node`` proved a key on a connection that is live.

        If a run's lease was sealed to that key the same process has it, and that has ended the runs of its earlier
        connections before it registered (N7). One that registers with another key may be another process.
        """
        adrift = self._adrift
        known = [each for each in adrift if (each.key.binding.node, each.key.public_key) == (node, public_key)]
        if known:
            gone = set(known)
            self._adrift = [each for each in adrift if each not in gone]
            heapify(self._adrift)
            for watched in known:
                self._settled(watched)

    def applied(self, projection: Projection) -> Deferred[int]:
        """Drop leases, and ask the Nodes to end what ``projection``, now in force, no longer allows.

        The cost is that of two look-ups for each run that is known and was not asked about.

        :returns: fires, after ``word_seconds`` at most, with :attr:`unanswered`: runs of earlier projections count too.
        """
        self._leases.forget_before(projection.generation)
        self._let_go()
        revoked = [watched for watched in self._unasked if changed(watched.pinned, projection)]
        for watched in revoked:
            del self._unasked[watched]
            self._unanswered[watched] = None
        if revoked:
            _log.info("edge.runs.revoked", count=len(revoked), generation=projection.generation)
        # an earlier projection's runs that still have time are waited for as well
        waited_for = {*revoked, *(watched for inquiry in self._inquiries for watched in inquiry.runs)}
        if not waited_for:
            return succeed(self._count())
        timer = self._clock.call_later(self._word_seconds, lambda: self._late(inquiry))
        inquiry = _Inquiry(waited_for, Deferred(), timer)
        self._inquiries.append(inquiry)
        for watched in revoked:
            if watched.run is not None:
                watched.run.stop_unless_started(partial(self._settled, watched))
        return inquiry.told

    def _count(self) -> int:
        return len(self._unanswered) + self._crowd

    def _over(self, watched: _Watched, is_lost: bool) -> None:
        """A run has its head, or ended: its Node's word, unless its connection did so before there was one."""
        if is_lost and (watched in self._unasked or watched in self._unanswered):
            self._cast_off(watched)
        else:
            self._settled(watched)

    def _cast_off(self, watched: _Watched) -> None:
        """Nobody can be asked about a run any more."""
        # it holds on to its caller's exchange
        watched.run = None
        if len(self._adrift) >= ADRIFT_LIMIT:
            self._let_go()
        if len(self._adrift) < ADRIFT_LIMIT:
            heappush(self._adrift, watched)
            return
        self._crowd += 1
        self._crowd_over_ms = max(self._crowd_over_ms, watched.over_ms)
        self._settled(watched)

    def _let_go(self) -> None:
        """Of runs whose leases are over no Node starts one."""
        now_ms = self._clock.wall_ms()
        while self._adrift and self._adrift[0].over_ms <= now_ms:
            self._settled(heappop(self._adrift))
        if self._crowd_over_ms <= now_ms:
            self._crowd = 0

    def _settled(self, watched: _Watched) -> None:
        """A run has its head, its end or its word, or cannot be started any more."""
        self._unasked.pop(watched, None)
        self._unanswered.pop(watched, None)
        for inquiry in self._inquiries.copy():
            inquiry.runs.discard(watched)
            if not inquiry.runs:
                inquiry.timer.cancel()
                self._tell(inquiry)

    def _late(self, inquiry: _Inquiry) -> None:
        _log.warn("edge.runs.unanswered", count=len(inquiry.runs))
        self._tell(inquiry)

    def _tell(self, inquiry: _Inquiry) -> None:
        self._inquiries.remove(inquiry)
        inquiry.told.callback(self._count())
