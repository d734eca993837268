"""The Edge's side of its Control Plane: enrolment, projections, leases, commands (rules E2-E7, E11-E13, L1, L4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from iop.edge.authority import ILink
from iop.edge.hello import greet
from iop.edge.offers import Offers
from iop.errors import (
    ControlPlaneUnavailable,
    Draining,
    HelloRefused,
    LeaseRefused,
    MalformedFrame,
    PeerDisconnected,
    ProtocolViolation,
    RequestTimedOut,
    TooManyInFlight,
    UnexpectedMessage,
)
from iop.interfaces import IPeerApplication
from iop.net.peer import close_for
from iop.units import HANDSHAKE_SECONDS, PROTOCOL_VERSION
from iop.wire import control_pb2, runtime_pb2
from iop.wire.dialect import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from iop.core.projection import Projection
    from iop.edge.commands import Commands
    from iop.edge.events import Notes
    from iop.edge.metrics import EdgeMetrics
    from iop.edge.offers import Change
    from iop.edge.projections import Projections
    from iop.edge.status import Status
    from iop.errors import IopError
    from iop.interfaces import IClock, IPeer

#: What ``/readyz`` says.
NO_PROJECTION: Final = "the Control Plane was not reached yet, or not for too long"
NO_CONTROL_PLANE: Final = "the Control Plane is not connected; only leases that are held still serve"

_log = Logger()
_NOT_THERE = "the service cannot authorise requests at the moment"
_AGAIN = "try again in a moment"


@implementer(ILink)
class ControlLink:
    """The one Control Plane of this Edge, whichever connection leads to it.

    :param deployment: the deployment id that the Control Plane must name.
    :param staleness_seconds: how long after the last ready connection the projection may still be used (P9).
    :param lease_call_seconds: deadline of one lease request.
    :param settled: called whenever a connection became ready.
    :param status: what this Edge tells of itself.
    :param notes: what it tells without being asked, which goes over the connection whose hello was accepted.
    :param commands: takes the commands of operators.
    """

    dialect = CONTROL

    def __init__(
        self,
        projections: Projections,
        clock: IClock,
        metrics: EdgeMetrics,
        deployment: str,
        staleness_seconds: float,
        lease_call_seconds: float,
        settled: Callable[[], object],
        status: Status,
        notes: Notes,
        commands: Commands,
    ) -> None:
        self.projections = projections
        self.status = status
        self.notes = notes
        self.commands = commands
        self.deployment = deployment
        self.clock = clock
        self._metrics = metrics
        self._staleness_seconds = staleness_seconds
        self._lease_call_seconds = lease_call_seconds
        self._settled = settled
        self._peer: IPeer | None = None
        self._offers: Offers | None = None
        #: Boot time at which the last ready connection ended.
        self._lost_at = 0.0

    def application(self) -> ControlConnection:
        """What serves one new connection."""
        return ControlConnection(self)

    @property
    def ready(self) -> bool:
        """Whether leases can be asked for."""
        return self._peer is not None

    def projection(self) -> Projection:
        """The projection in force, as long as it may be used: connected, or not for too long without (P9).

        :raises ControlPlaneUnavailable: if there is none, or it is stale.
        """
        projection = self.projections.current
        stale = self._peer is None and self.clock.boot() - self._lost_at > self._staleness_seconds
        if projection is None or stale:
            raise ControlPlaneUnavailable(_NOT_THERE, hint=_AGAIN)
        return projection

    @property
    def generation(self) -> int:
        """That of the projection in force, stale or not; 0 if there is none."""
        return self.projections.generation

    def reached(self, generation: int, within_seconds: float) -> Deferred[None]:
        """See :meth:`Projections.reached`."""
        return self.projections.reached(generation, within_seconds)

    def load(self) -> None:
        """See :meth:`Projections.load`."""
        self.projections.load()

    def missing(self) -> list[str]:
        """Why requests would be refused now, or some of them."""
        try:
            self.projection()
        except ControlPlaneUnavailable:
            return [NO_PROJECTION]
        return [] if self.ready else [NO_CONTROL_PLANE]

    async def acquire(self, request: control_pb2.AcquireLeaseRequest) -> runtime_pb2.SealedLease:
        """Ask for a lease on the ready connection.

        :raises LeaseRefused: with the Control Plane's code.
        :raises ControlPlaneUnavailable: if there is no ready connection, or no answer in time.
        """
        peer = self._peer
        if peer is None:
            raise ControlPlaneUnavailable(_NOT_THERE, hint=_AGAIN)
        try:
            answer = await peer.request(request, self._lease_call_seconds)
        except (PeerDisconnected, RequestTimedOut, TooManyInFlight, Draining) as error:
            raise ControlPlaneUnavailable(_NOT_THERE, hint=_AGAIN) from error
        if isinstance(answer, control_pb2.AcquireLeaseResponse):
            if answer.HasField("lease"):
                return answer.lease
            if answer.HasField("refusal"):
                refusal = answer.refusal
                raise LeaseRefused(refusal.code, _NOT_THERE, again=refusal.retryable, generation=refusal.generation)
        peer.close(MalformedFrame("the answer to a lease request holds neither a lease nor a refusal"))
        raise ControlPlaneUnavailable(_NOT_THERE, hint=_AGAIN)

    async def resync(self) -> None:
        """Have the projection in force sent again, whole, and put it in the place of what is in memory.

        :raises ControlPlaneUnavailable: if there is no ready connection, or it ends or says nothing meanwhile.
        :raises ProjectionRefused: if what came is not what was acknowledged; what is in force stays so.
        :raises ProjectionSuperseded: if newer projections replaced it all the time.
        :raises ProtocolViolation: if what came broke the wire; the connection is closed.
        """
        peer, offers = self._peer, self._offers
        if peer is None or offers is None:
            raise ControlPlaneUnavailable(_NOT_THERE, hint=_AGAIN)
        try:
            await offers.resync()
        except (PeerDisconnected, RequestTimedOut, TooManyInFlight, Draining) as error:
            raise ControlPlaneUnavailable(_NOT_THERE, hint=_AGAIN) from error
        except ProtocolViolation as violation:
            peer.close(violation)
            raise

    def drain(self) -> None:
        """Let what is under way on the ready connection end, and what was told arrive, and close it."""
        if self._peer is not None:
            self._peer.drain()

    def opened(self, peer: IPeer, offers: Offers) -> None:
        """A connection is enrolled: leases are asked for there."""
        self._peer, self._offers = peer, offers
        self._metrics.control_plane_sessions.inc()
        self._settled()

    def ended(self, peer: IPeer) -> None:
        """A connection ended; staleness counts from now if it was the ready one."""
        self.notes.no_longer_to(peer)
        if self._peer is peer:
            self._peer = self._offers = None
            self._lost_at = self.clock.boot()


@implementer(IPeerApplication)
class ControlConnection:
    """One connection to the Control Plane, from its hello to its end."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._peer: IPeer | None = None
        #: What comes over this connection once its hello was accepted.
        self._offers: Offers | None = None

    def connected(self, peer: IPeer) -> None:
        """The certificate holds: present this Edge and what it holds."""
        self._peer = peer
        Deferred.fromCoroutine(self._enrol(peer)).addErrback(partial(close_for, peer))

    def asked(self, message: Message) -> Deferred[Message]:
        """Take a newer projection or a command, or tell how things are."""
        offers = self._offers
        if offers is not None:
            match message:
                case control_pb2.PrincipalProjectionApplyRequest():
                    return offers.take(_change(message), message.receipt).addCallback(_applied)
                case control_pb2.EdgeStatusRequest():
                    return succeed(self._link.status.page(message.after, self._link.projections.generation))
                case control_pb2.EdgeCommandRequest():
                    return succeed(self._link.commands.take(message))
        raise UnexpectedMessage("a Control Plane may not ask this now")

    def notified(self, message: Message) -> None:
        """A Control Plane has nothing to tell without asking."""
        raise UnexpectedMessage("a Control Plane may not send this")

    def lost(self, reason: IopError) -> None:
        """Leases stop here; the projection lives on until it is stale."""
        if self._offers is not None:
            self._offers.end()
            self._offers = None
        if self._peer is not None:
            self._link.ended(self._peer)
        _log.warn("edge.control.disconnected", reason=reason.code, detail=reason.message)

    async def _enrol(self, peer: IPeer) -> None:
        hello = await self._hello(peer)
        self._link.notes.go_to(peer)
        # whatever comes from here on waits for the projection of the hello
        offers = self._offers = Offers(self._link.projections, peer, self._link.clock)
        outcome = await offers.take(hello.projection, hello.receipt)
        await self._give_word(peer, outcome)
        self._link.opened(peer, offers)
        _log.info("edge.control.ready", generation=outcome.generation)

    async def _hello(self, peer: IPeer) -> control_pb2.EdgeHelloResponse:
        answer = await greet(peer, self._link.projections.hello(PROTOCOL_VERSION), self._link.deployment)
        if not answer.HasField("projection") or not answer.HasField("receipt"):
            raise MalformedFrame("the accepted hello came without projection or receipt")
        return answer

    async def _give_word(self, peer: IPeer, outcome: control_pb2.ProjectionOutcome) -> None:
        ready = await peer.request(control_pb2.EdgeReadyRequest(outcome=outcome), HANDSHAKE_SECONDS)
        if not isinstance(ready, control_pb2.EdgeReadyResponse):
            raise UnexpectedMessage("the word on the projection was answered by something else")
        if not ready.accepted or outcome.result == control_pb2.PROJECTION_RESULT_REFUSED:
            raise HelloRefused(ready.code or outcome.code, "this Edge and its Control Plane do not agree")


def _change(message: control_pb2.PrincipalProjectionApplyRequest) -> Change:
    match message.WhichOneof("change"):
        case "projection":
            return message.projection
        case "delta":
            return message.delta
        case _:
            raise MalformedFrame("a push without a projection or a change of one")


def _applied(outcome: control_pb2.ProjectionOutcome) -> Message:
    return control_pb2.PrincipalProjectionApplyResponse(outcome=outcome)
