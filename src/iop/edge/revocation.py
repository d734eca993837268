"""What a newer projection no longer allows is not begun any more when its Edge acknowledges it (E15, R11, P41)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from iop.core.fences import Pinned, changed

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from iop.core.projection import Projection
    from iop.edge.authority import ILeases
    from iop.edge.runs import Run
    from iop.interfaces import IClock

_log = Logger()


@dataclass(eq=False, slots=True)
class _Inquiry:
    """The runs whose Nodes one projection waits for.

    :ivar told: fires with how many runs, of this projection or earlier ones, are without a word.
    """

    runs: set[Run]
    told: Deferred[int]
    timer: IDelayedCall


class Revocation:
    """Ends what a newer projection no longer allows, as long as nothing of it was sent upstream.

    It knows the runs that may not have been started yet, from their second fence until their head, their end or their
    Node's word that they were: so there are never more of them than open runs.

    :param word_seconds: how long a projection waits for the Nodes' words.
    """

    def __init__(self, leases: ILeases, clock: IClock, word_seconds: float) -> None:
        self._leases = leases
        self._clock = clock
        self._word_seconds = word_seconds
        self._unasked: dict[Run, Pinned] = {}
        self._unanswered: set[Run] = set()
        self._inquiries: list[_Inquiry] = []

    @property
    def unanswered(self) -> int:
        """How many runs may still start with what is no longer allowed, since their Nodes have not answered."""
        return len(self._unanswered)

    def watch(self, run: Run, pinned: Pinned) -> Callable[[], None]:
        """Know of a run that was opened for ``pinned``; what this answers is to be called at its head or end."""
        self._unasked[run] = pinned
        return partial(self._settled, run)

    def applied(self, projection: Projection) -> Deferred[int]:
        """Drop leases, and ask the Nodes to end what ``projection``, now in force, no longer allows.

        The cost is that of two look-ups for each run that is known and was not asked about.

        :returns: fires, after ``word_seconds`` at most, with :attr:`unanswered`: runs of earlier projections count too.
        """
        self._leases.forget_before(projection.generation)
        revoked = [run for run, pinned in self._unasked.items() if changed(pinned, projection)]
        for run in revoked:
            del self._unasked[run]
        self._unanswered.update(revoked)
        if revoked:
            _log.info("edge.runs.revoked", count=len(revoked), generation=projection.generation)
        # an earlier projection's runs that still have time are waited for as well
        waited_for = {*revoked, *(run for inquiry in self._inquiries for run in inquiry.runs)}
        if not waited_for:
            return succeed(self.unanswered)
        timer = self._clock.call_later(self._word_seconds, lambda: self._late(inquiry))
        inquiry = _Inquiry(waited_for, Deferred(), timer)
        self._inquiries.append(inquiry)
        for run in revoked:
            run.stop_unless_started(partial(self._settled, run))
        return inquiry.told

    def _settled(self, run: Run) -> None:
        """``run`` has its head, its end or its word."""
        self._unasked.pop(run, None)
        self._unanswered.discard(run)
        for inquiry in self._inquiries.copy():
            inquiry.runs.discard(run)
            if not inquiry.runs:
                inquiry.timer.cancel()
                self._tell(inquiry)

    def _late(self, inquiry: _Inquiry) -> None:
        _log.warn("edge.runs.unanswered", count=len(inquiry.runs))
        self._tell(inquiry)

    def _tell(self, inquiry: _Inquiry) -> None:
        self._inquiries.remove(inquiry)
        inquiry.told.callback(self.unanswered)
