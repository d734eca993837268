"""What went out on one connection, and what its Edge said to it: no I/O (E5, E7, E11, E12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from iop.core.projection import BUCKETS
from iop.errors import EdgeCutOff, ProjectionRefused, UnexpectedMessage
from iop.wire import control_pb2

if TYPE_CHECKING:
    from iop.control_plane.pages import Pages
    from iop.control_plane.projections import Publication
    from iop.core.projection import Projection


@dataclass(frozen=True, slots=True)
class Offer:
    """One message that offers a projection: whole, or as a change of the one before."""

    message: control_pb2.PrincipalProjectionApplyRequest
    projection: Projection
    whole: bool


class Word(Enum):
    """What an Edge's answer to an offer comes to, unless it ends the session."""

    ACKNOWLEDGED = auto()
    #: It refuses a change, so a whole projection is due (E7).
    REFUSED = auto()
    #: It refuses a change whose base it refused; a whole projection is due or on its way already.
    FOLLOWS = auto()


class Sent:
    """The projections of one connection.

    :ivar acknowledged: the newest generation that the Edge acknowledged, or 0.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        #: What was written last: the base of the next change.
        self._newest: Projection | None = None
        #: By generation, the one acknowledged last and each written since.
        self._kept: dict[int, Projection] = {}
        #: Whether a change was refused and no whole projection was written since; the generation of the last whole one.
        self._mending = False
        self._whole = 0
        self.acknowledged = 0

    @property
    def generation(self) -> int:
        """The newest that was written, or 0."""
        return self._newest.generation if self._newest else 0

    def lacks(self, generation: int) -> bool:
        """Whether there is something to write if the store is at ``generation``."""
        return self._mending or generation > self.generation

    def next(self, publication: Publication) -> Offer:
        """How ``publication`` is written after all that was: as a change if that is possible (E11)."""
        projection = publication.projection
        change = None
        if self._newest is not None and not self._mending:
            change = self._pages.change(self._newest, projection)
        whole = self._pages.first(projection) if change is None else None
        message = control_pb2.PrincipalProjectionApplyRequest(
            projection=whole, delta=change, receipt=publication.receipt
        )
        return Offer(message, projection, whole is not None)

    def wrote(self, projection: Projection, *, whole: bool) -> None:
        """Remember that ``projection`` is on its way."""
        self._newest = self._kept[projection.generation] = projection
        if whole:
            self._whole = projection.generation
            self._mending = False

    def answered(self, offer: Offer, outcome: control_pb2.ProjectionOutcome) -> Word:
        """Judge the Edge's word on ``offer``: nothing less than it will do, or an Edge could hold up every barrier.

        :raises ProjectionRefused: it refuses a whole one.
        :raises EdgeCutOff: it acknowledges one that it had before.
        :raises UnexpectedMessage: as :meth:`acknowledge`.
        """
        generation = offer.projection.generation
        if outcome.result == control_pb2.PROJECTION_RESULT_REFUSED:
            if not offer.whole:
                if self._mending or generation <= self._whole:
                    return Word.FOLLOWS
                self._mending = True
                return Word.REFUSED
        elif outcome.generation < generation:
            raise EdgeCutOff("the Edge answers a projection with one that it had before")
        self.acknowledge(outcome)
        return Word.ACKNOWLEDGED

    def acknowledge(self, outcome: control_pb2.ProjectionOutcome) -> None:
        """Take the Edge's word that a projection is in force.

        :raises ProjectionRefused: it says that none is.
        :raises UnexpectedMessage: it is about something that was never written, or is not kept any more.
        """
        if outcome.result not in (control_pb2.PROJECTION_RESULT_APPLIED, control_pb2.PROJECTION_RESULT_HELD):
            raise ProjectionRefused(outcome.code, "the Edge refused its projection")
        kept = self._kept.get(outcome.generation)
        if kept is None or kept.digest != outcome.digest:
            raise UnexpectedMessage("the Edge acknowledges a projection that was not sent to it")
        self.acknowledged = outcome.generation
        self._kept = {generation: each for generation, each in self._kept.items() if generation >= outcome.generation}

    def page(self, request: control_pb2.ProjectionPageRequest) -> control_pb2.ProjectionPageResponse:
        """What an Edge asks for of a projection that it was sent (E12).

        :raises UnexpectedMessage: there is no such bucket.
        """
        if request.bucket >= BUCKETS:
            raise UnexpectedMessage("a projection has no such bucket")
        kept = self._kept.get(request.generation)
        if kept is None:
            return control_pb2.ProjectionPageResponse(kept=False)
        return self._pages.page(kept, request.bucket)
