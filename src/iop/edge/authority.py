"""What the request path needs to know before a Node gets a run, whichever mode the Edge is in (E16, E17).

In managed mode that is the Control Plane's: :mod:`iop.edge.control_link` and :mod:`iop.edge.leases`. In legacy mode it
is the Edge's own configuration: :mod:`iop.edge.legacy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from iop.core.projection import Projection
    from iop.edge.leases import Lease, LeaseKey
    from iop.interfaces import IPeerApplication
    from iop.wire import runtime_pb2
    from iop.wire.dialect import Dialect


class IAuthority(Interface):
    """Says who may use what."""

    def projection() -> Projection:
        """The projection in force; :class:`~iop.errors.ControlPlaneUnavailable` if none may be used."""

    def reached(generation: int, within_seconds: float) -> Deferred[None]:
        """Fires once ``generation`` or a later one is in force.

        Fails with :class:`~iop.errors.RequestTimedOut` after ``within_seconds``.
        """


class ILink(IAuthority):
    """The way to the Control Plane, and what it says."""

    dialect: Dialect = Attribute("What may travel there.")
    ready: bool = Attribute("Whether a connection there is enrolled.")
    generation: int = Attribute("Of the projection that the Control Plane sent and that is in force; 0 for none.")

    def application() -> IPeerApplication:
        """What serves one new connection."""

    def load() -> None:
        """Read what an earlier process left. :class:`~iop.errors.BadConfig` if that cannot be read."""

    def missing() -> list[str]:
        """Why callers would be refused now, in words for ``/readyz``."""

    async def resync() -> None:
        """Have the projection in force sent again.

        :class:`~iop.errors.ControlPlaneUnavailable` if nobody can; whatever else is raised, what is in force stays so.
        """

    def drain() -> None:
        """Let what is under way on the ready connection end, and what was told arrive, and close it."""


class ILeases(Interface):
    """Where a run's lease comes from."""

    def get(
        request_id: str, key: LeaseKey, token_proof: bytes, attestation: runtime_pb2.NodeKeyAttestation
    ) -> Deferred[Lease | None]:
        """A lease for ``key``, or None where a run has none.

        Fails with :class:`~iop.errors.LeaseRefused` or :class:`~iop.errors.ControlPlaneUnavailable`.
        """

    def discard(key: LeaseKey) -> None:
        """Forget a lease that its Node would not take."""

    def forget_before(generation: int) -> None:
        """Forget what is bound to a generation before ``generation``."""

    def forget_node(node: str) -> None:
        """Forget what was for ``node``, which is gone."""

    def forget_key(node: str, keep: bytes) -> None:
        """Forget what was for another key of ``node`` than ``keep``."""

    def flush() -> int:
        """Forget every lease; answers how many were kept."""
