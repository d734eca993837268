"""Legacy mode: an Edge without the credential plane (rules E16, E17, clauses C24, C25).

Who may use what stands in the Edge's own configuration. The request path is the one of managed mode, on a projection
that is made once and never changes, and with runs that have no lease.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from iop.core.profiles import NO_CREDENTIAL
from iop.core.projection import Projection
from iop.edge.authority import ILeases, ILink
from iop.edge.hello import greet
from iop.errors import ControlPlaneUnavailable, MalformedFrame, UnexpectedMessage
from iop.interfaces import IPeerApplication
from iop.net.peer import close_for
from iop.records import ProjectionSnapshot, RouteEntry, TokenEntry
from iop.units import PROTOCOL_VERSION
from iop.wire import control_pb2, runtime_pb2
from iop.wire.dialect import LEGACY_CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    from iop.edge.commands import Commands
    from iop.edge.config import CallerTable, NodeTable
    from iop.edge.events import Notes
    from iop.edge.leases import Lease, LeaseKey
    from iop.edge.metrics import EdgeMetrics
    from iop.edge.status import Status
    from iop.errors import IopError
    from iop.interfaces import IPeer

#: Generation and revisions of what never changes.
_ONCE: Final = 1
#: What stands where a managed route names its credential slot.
_NO_SLOT: Final = "none"

_log = Logger()


def projection_of(callers: Sequence[CallerTable], nodes: Sequence[NodeTable]) -> Projection:
    """What the configuration lets its callers use: each of them every model of the catalogue.

    :param nodes: a model has one target in all of them, and every provider the profile ``none``.
    """
    targets = {
        model: provider.target for node in nodes for provider in node.providers for model in sorted(provider.models)
    }
    return Projection.build(
        ProjectionSnapshot(
            _ONCE,
            tuple(TokenEntry(caller.name, caller.name, bytes.fromhex(caller.sha256)) for caller in callers),
            tuple(
                RouteEntry(
                    route=f"{caller.name}/{number}",
                    principal=caller.name,
                    slot=_NO_SLOT,
                    profile=NO_CREDENTIAL,
                    target=target,
                    model=model,
                    upstream_model=model,
                    selector="",
                    credential_revision=_ONCE,
                    route_revision=_ONCE,
                )
                for caller in callers
                for number, (model, target) in enumerate(sorted(targets.items()), 1)
            ),
        )
    )


@implementer(ILeases)
class NoLeases:
    """Gives none, so that runs have none."""

    def get(
        self, request_id: str, key: LeaseKey, token_proof: bytes, attestation: runtime_pb2.NodeKeyAttestation
    ) -> Deferred[Lease | None]:
        """None, whatever for."""
        return succeed(None)

    def discard(self, key: LeaseKey) -> None:
        """There is none."""

    def forget_before(self, generation: int) -> None:
        """There is none."""

    def forget_node(self, node: str) -> None:
        """There is none."""

    def forget_key(self, node: str, keep: bytes) -> None:
        """There is none."""

    def flush(self) -> int:
        """There is none."""
        return 0


@implementer(ILink)
class LegacyLink:
    """The Control Plane of an Edge that it has no say in: it is told how things are, and may give commands.

    :param projection: what is in force, with or without a Control Plane.
    :param deployment: the deployment id that the Control Plane must name.
    :param settled: called whenever a connection was accepted.
    """

    dialect = LEGACY_CONTROL
    #: The Control Plane sent none.
    generation = 0

    def __init__(
        self,
        projection: Projection,
        metrics: EdgeMetrics,
        deployment: str,
        edge: str,
        settled: Callable[[], object],
        status: Status,
        notes: Notes,
        commands: Commands,
    ) -> None:
        self.deployment = deployment
        self.edge = edge
        self.status = status
        self.notes = notes
        self.commands = commands
        self._projection = projection
        self._metrics = metrics
        self._settled = settled
        self._peer: IPeer | None = None

    def application(self) -> LegacyConnection:
        """What serves one new connection."""
        return LegacyConnection(self)

    @property
    def ready(self) -> bool:
        """Whether a Control Plane is connected."""
        return self._peer is not None

    def projection(self) -> Projection:
        """What the configuration says."""
        return self._projection

    def reached(self, generation: int, within_seconds: float) -> Deferred[None]:
        """Nothing newer ever comes, so nobody is kept waiting for it."""
        return succeed(None)

    def load(self) -> None:
        """An earlier process leaves nothing."""

    def missing(self) -> list[str]:
        """Nothing: callers are served without a Control Plane."""
        return []

    async def resync(self) -> None:
        """Not installed (C24).

        :raises ControlPlaneUnavailable: always; no Control Plane has this projection.
        """
        raise ControlPlaneUnavailable("in legacy mode the Control Plane sends no projection")

    def drain(self) -> None:
        """Let what is under way on the connection end, and what was told arrive, and close it."""
        if self._peer is not None:
            self._peer.drain()

    def opened(self, peer: IPeer) -> None:
        """The Control Plane accepted the hello."""
        self._peer = peer
        self.notes.go_to(peer)
        self._metrics.control_plane_sessions.inc()
        self._settled()

    def ended(self, peer: IPeer) -> None:
        """A connection ended."""
        self.notes.no_longer_to(peer)
        if self._peer is peer:
            self._peer = None


@implementer(IPeerApplication)
class LegacyConnection:
    """One connection to the Control Plane, from its hello to its end."""

    def __init__(self, link: LegacyLink) -> None:
        self._link = link
        self._peer: IPeer | None = None

    def connected(self, peer: IPeer) -> None:
        """The certificate holds: present this Edge."""
        self._peer = peer
        Deferred.fromCoroutine(self._enrol(peer)).addErrback(partial(close_for, peer))

    def asked(self, message: Message) -> Deferred[Message]:
        """Tell how things are, or take a command; the dialect has nothing else."""
        match message:
            case control_pb2.EdgeStatusRequest():
                return succeed(self._link.status.page(message.after, self._link.generation))
            case control_pb2.EdgeCommandRequest():
                return succeed(self._link.commands.take(message))
        raise UnexpectedMessage("a Control Plane may not ask this of an Edge in legacy mode")

    def notified(self, message: Message) -> None:
        """A Control Plane has nothing to tell without asking."""
        raise UnexpectedMessage("a Control Plane may not send this")

    def lost(self, reason: IopError) -> None:
        """Callers do not notice."""
        if self._peer is not None:
            self._link.ended(self._peer)
        _log.warn("edge.control.disconnected", reason=reason.code, detail=reason.message)

    async def _enrol(self, peer: IPeer) -> None:
        hello = control_pb2.EdgeHelloRequest(edge_id=self._link.edge, protocol_version=PROTOCOL_VERSION, legacy=True)
        answer = await greet(peer, hello, self._link.deployment)
        if answer.HasField("projection") or answer.HasField("receipt"):
            raise MalformedFrame("the accepted hello of an Edge in legacy mode came with a projection or a receipt")
        self._link.opened(peer)
        _log.info("edge.control.ready", generation=self._link.generation)
