"""What each Edge is to know: one consistent reading of the store, its digest, the receipt for it (E4, E8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from iop.core.projection import projection_digest
from iop.crypto.receipt import sign_receipt
from iop.wire.convert import projection_to_wire

if TYPE_CHECKING:
    from iop.crypto.issuer import Issuer
    from iop.interfaces import IProjections
    from iop.wire.control_pb2 import PrincipalProjection, ProjectionReceipt


@dataclass(frozen=True, slots=True)
class Publication:
    """One projection, ready to be sent to one Edge."""

    generation: int
    digest: bytes = field(repr=False)
    projection: PrincipalProjection = field(repr=False)
    receipt: ProjectionReceipt = field(repr=False)


class Publisher:
    """Builds publications, each at most once for any number of callers that wait for it.

    :param projections: where consistent readings come from.
    :param issuer: signs the receipts.
    :param deployment_id: stands in every receipt.
    """

    def __init__(self, projections: IProjections, issuer: Issuer, deployment_id: str) -> None:
        self._projections = projections
        self._issuer = issuer
        self._deployment_id = deployment_id
        self._built: dict[str, Publication] = {}
        self._building: dict[str, list[Deferred[None]]] = {}

    async def newest(self, edge: str, at_least: int = 0) -> Publication:
        """The publication for ``edge`` whose generation is ``at_least`` or later.

        Without ``at_least`` the store is always read. Whoever finds a reading under way waits for it and, where it
        turns out too old, begins another: a reading that started before a mutation never stands for it.
        """
        while True:
            built = self._built.get(edge)
            if at_least and built is not None and built.generation >= at_least:
                return built
            waiting = self._building.get(edge)
            if waiting is None:
                return await self._build(edge)
            turn: Deferred[None] = Deferred()
            waiting.append(turn)
            await turn

    def forget(self, edge: str) -> None:
        """Drop what was built for an Edge that is gone."""
        self._built.pop(edge, None)

    async def _build(self, edge: str) -> Publication:
        self._building[edge] = []
        try:
            snapshot = await self._projections.snapshot(edge)
            digest = projection_digest(snapshot.tokens, snapshot.routes)
            publication = Publication(
                snapshot.generation,
                digest,
                projection_to_wire(snapshot, digest),
                sign_receipt(
                    self._issuer,
                    deployment_id=self._deployment_id,
                    edge=edge,
                    generation=snapshot.generation,
                    digest=digest,
                ),
            )
            self._built[edge] = publication
            return publication
        finally:
            for turn in self._building.pop(edge):
                turn.callback(None)
