"""What each Edge is to know: readings of the store that follow each other, and receipts for what came of them (E8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from iop.control_plane.pages import Pages
from iop.control_plane.slices import in_slices
from iop.control_plane.views import Views
from iop.crypto.receipt import sign_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from iop.core.projection import Projection
    from iop.crypto.issuer import Issuer
    from iop.interfaces import IClock, IProjections
    from iop.wire.control_pb2 import ProjectionReceipt


@dataclass(frozen=True, slots=True)
class Publication:
    """A projection that is for one Edge, as its receipt says."""

    projection: Projection
    receipt: ProjectionReceipt = field(repr=False)


class Publisher:
    """Follows the store for the Edges that are connected.

    :param projections: where consistent readings come from.
    :param issuer: signs the receipts.
    :param deployment_id: stands in every receipt.
    :param pages: the messages of what is published.
    :param spare: called once a whole reading was followed, whose many objects will stay.
    """

    def __init__(
        self,
        projections: IProjections,
        issuer: Issuer,
        deployment_id: str,
        clock: IClock,
        pages: Pages,
        spare: Callable[[], None],
    ) -> None:
        self.pages = pages
        self._spare = spare
        self._projections = projections
        self._issuer = issuer
        self._deployment_id = deployment_id
        self._clock = clock
        self._views = Views()
        self._edges: set[str] = set()
        #: Who waits for a reading that has not begun.
        self._waiting: list[Deferred[None]] = []
        self._reading = False

    async def enrol(self, edge: str) -> Publication:
        """What the store says now that ``edge`` is to know; it is followed for this Edge until :meth:`forget`."""
        self._edges.add(edge)
        await self._read()
        return self.publication(edge)

    async def advance(self, generation: int) -> None:
        """Be at ``generation`` or later, if the store is."""
        if self._views.generation < generation:
            await self._read()

    def publication(self, edge: str) -> Publication:
        """What ``edge``, which was enrolled, is to know as of the last reading."""
        projection = self._views.of(edge)
        receipt = sign_receipt(
            self._issuer,
            deployment_id=self._deployment_id,
            edge=edge,
            generation=projection.generation,
            digest=projection.digest,
        )
        return Publication(projection, receipt)

    def forget(self, edge: str) -> None:
        """Follow the store no more for an Edge that is gone."""
        self._edges.discard(edge)
        self._views.forget(edge)

    def _read(self) -> Deferred[None]:
        """Fires when a reading was followed that began after this call: one before a mutation never stands for it.

        All who ask while one is under way share the next.
        """
        turn: Deferred[None] = Deferred()
        self._waiting.append(turn)
        if not self._reading:
            Deferred.fromCoroutine(self._read_for_all())
        return turn

    async def _read_for_all(self) -> None:
        self._reading = True
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            outcome: Failure | None = None
            try:
                await self._follow()
            except Exception:  # noqa: BLE001 - whatever it is, it is for those who wait
                outcome = Failure()
            # an Edge that hears of it makes the largest message there is, and they may be many
            await in_slices(self._clock, _tell(waiting, outcome))
        self._reading = False

    async def _follow(self) -> None:
        reading = await self._projections.reading(self._views.generation)
        views = Views() if reading.whole else self._views
        try:
            await in_slices(self._clock, views.follow(reading, self._edges))
        except Exception:
            # what is half followed is of no use; the next reading is whole
            self._views = Views()
            raise
        self._views = views
        if reading.whole:
            self.pages.clear()
            self._spare()


def _tell(waiting: Iterable[Deferred[None]], outcome: Failure | None) -> Iterator[None]:
    for turn in waiting:
        turn.callback(outcome)
        yield
