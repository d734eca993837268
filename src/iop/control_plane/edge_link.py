"""One Edge connection: enrolment, projections that go out and the words on them, leases (E1-E8, E11, E12, L1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.logger import Logger
from zope.interface import implementer

from iop.control_plane.sent import Sent, Word
from iop.control_plane.slices import later
from iop.crypto.receipt import verify_receipt
from iop.errors import (
    EdgeCutOff,
    FrameTooLarge,
    HelloRefused,
    IdentityRefused,
    IopError,
    NotFound,
    PeerDisconnected,
    ReceiptRefused,
    RequestTimedOut,
    UnexpectedMessage,
)
from iop.interfaces import IPeerApplication
from iop.units import PROTOCOL_VERSION, is_name
from iop.wire import control_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    from google.protobuf.message import Message
    from twisted.python.failure import Failure

    from iop.control_plane.edges import Edges
    from iop.control_plane.projections import Publication
    from iop.control_plane.sent import Offer
    from iop.core.projection import Projection
    from iop.interfaces import IPeer

    T = TypeVar("T")

#: Projections on the way to one Edge, sent and not yet acknowledged, at most.
UNACKNOWLEDGED_LIMIT = 8
#: Bytes of a lease request at most. A connection may have 1,024 of them wait, and a whole one has less than 11 KiB.
LEASE_REQUEST_LIMIT = 16 * 1024


@dataclass(frozen=True, slots=True)
class Session:
    """One connected Edge.

    :ivar sent: the newest generation written to its connection, ``acknowledged`` the newest that it acknowledged.
    :ivar ready: whether it may lease.
    :ivar legacy: whether it has no credential plane: then it is sent no projection and never ready (E16).
    :ivar since_ms: when its hello was accepted.
    """

    edge: str
    sent: int
    acknowledged: int
    ready: bool
    legacy: bool
    since_ms: int


@implementer(IPeerApplication)
class EdgeLink:
    """One Edge connection, from its hello to its end."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._peer: IPeer | None = None
        self._edge = ""
        self._session = ""
        self._sent = Sent(edges.publisher.pages)
        #: When its hello was accepted, in Unix milliseconds.
        self._since_ms = 0
        #: Whether the Edge said so in its hello: nothing of projections and leases is installed here then (E16).
        self._legacy = False
        #: Whether the Edge has given its word on the hello's projection.
        self._enrolled = False
        #: Whether barriers wait for this session: only then is a lease given (L1).
        self._awaited = False
        self._ended = False
        #: Whether a page was asked for and is not made yet.
        self._paging = False
        #: Of the last lifecycle event that was told here.
        self._told = 0
        self._sending = DeferredSemaphore(UNACKNOWLEDGED_LIMIT)
        self._log = Logger()

    # -- IPeerApplication ---------------------------------------------------------------------------------------------

    def connected(self, peer: IPeer) -> None:
        """The certificate holds; the hello has to name the same Edge."""
        self._peer = peer
        self._edge = peer.identity.name

    def asked(self, message: Message) -> Deferred[Message]:
        """Hello, the rest of a projection, the word on it, and leases."""
        if self._legacy:
            raise UnexpectedMessage("an Edge in legacy mode may not ask this")
        answer: Coroutine[Deferred[Any], Any, Message]
        match message:
            case control_pb2.EdgeHelloRequest():
                answer = self._hello(message)
            case control_pb2.EdgeReadyRequest():
                answer = self._ready(message.outcome)
            case control_pb2.AcquireLeaseRequest():
                answer = self._lease(message)
            case control_pb2.ProjectionPageRequest():
                answer = self._page(message)
            case _:
                raise UnexpectedMessage("an Edge may not ask this")
        return Deferred.fromCoroutine(answer)

    def notified(self, message: Message) -> None:
        """Lifecycle events, and how commands stand."""
        self._told = self._edges.events.told(self._edge, message, self._told)

    def lost(self, reason: IopError) -> None:
        """End the session's row; whoever waits at a barrier for it counts it as cut off from now on."""
        self._ended = True
        # one that never was an Edge's session, such as a look of `iop doctor`, takes no Edge away
        if self._edges.release(self._edge, self):
            self._log.info("control.edge.disconnected", edge=self._edge, reason=reason.code, detail=reason.message)
            if self._since_ms:
                self._edges.events.disconnected(self._edge)
        if self._session:
            self._end_session()

    # -- for Edges ----------------------------------------------------------------------------------------------------

    def close(self, reason: IopError) -> None:
        """End the connection for ``reason``."""
        if self._peer is not None:
            self._peer.close(reason)

    def drain(self) -> None:
        """Let what is in flight finish, then close."""
        if self._peer is not None:
            self._peer.drain()

    def refresh(self, generation: int) -> None:
        """Send a projection of ``generation`` or later, unless one was sent; failures end the connection.

        An Edge that still takes the hello's projection apart is sent what is newer when its word on that is in.
        """
        if self._enrolled and self._sent.lacks(generation):
            self._watch(self._push(generation))

    def session(self) -> Session:
        """How far this connection is."""
        return Session(
            self._edge,
            self._sent.generation,
            self._sent.acknowledged,
            ready=self._awaited,
            legacy=self._legacy,
            since_ms=self._since_ms,
        )

    async def ask(self, question: Callable[[IPeer], Coroutine[Any, Any, T]]) -> T:
        """Put a question of an operator to the Edge (S1, S6); an answer that is none ends the connection.

        :raises NotFound: its word on the projection is not in yet.
        """
        if self._peer is None or not (self._enrolled or (self._legacy and self._since_ms)):
            raise NotFound("this Edge is connecting just now", hint="try again")
        try:
            return await question(self._peer)
        except UnexpectedMessage as violation:
            self.close(violation)
            raise PeerDisconnected("the Edge broke the wire, and its connection was ended") from None

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _hello(self, hello: control_pb2.EdgeHelloRequest) -> Message:
        self._legacy = hello.legacy
        try:
            self._admit(hello)
            publication = await (self._enrol_legacy() if hello.legacy else self._enrol(hello))
        except HelloRefused as refusal:
            await self._edges.store.audit.append(f"edge:{self._edge}", "edge.hello", self._edge, refusal.reason, {})
            self._log.warn("control.edge.refused", edge=self._edge, reason=refusal.reason)
            return control_pb2.EdgeHelloResponse(accepted=False, code=refusal.reason, message=refusal.message)
        finally:
            if self._ended and self._session:
                # The connection went while the store was at work; nobody else will end this row.
                self._end_session()
        if self._ended:
            # who heard now that this Edge is connected would never hear that it is gone
            raise PeerDisconnected("the connection ended before its hello was answered")
        self._since_ms = self._edges.clock.wall_ms()
        accepted = control_pb2.EdgeHelloResponse(accepted=True, deployment_id=self._edges.deployment_id)
        if publication is not None:
            self._sent.wrote(publication.projection, whole=True)
            accepted.projection.CopyFrom(self._edges.publisher.pages.first(publication.projection))
            accepted.receipt.CopyFrom(publication.receipt)
        self._log.info("control.edge.connected", edge=self._edge, generation=self._sent.generation, legacy=self._legacy)
        self._edges.events.connected(self._edge)
        return accepted

    def _admit(self, hello: control_pb2.EdgeHelloRequest) -> None:
        """Make this the one connection of its Edge, or raise :class:`~iop.errors.HelloRefused` (E1, E3)."""
        if hello.edge_id != self._edge:
            raise HelloRefused(IdentityRefused.code, "the hello names another Edge than the certificate")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise HelloRefused("unsupported_version", f"this Control Plane speaks version {PROTOCOL_VERSION}")
        if not self._edges.claim(self._edge, self):
            raise HelloRefused("already_connected", "this Edge is connected already")

    async def _enrol_legacy(self) -> None:
        """Nothing but whether it was denied: a denial that comes later finds this connection and closes it (E16)."""
        if ("edge", self._edge) in await self._edges.store.denials.all():
            raise HelloRefused("edge_denied", "this Edge was denied by an operator")

    async def _enrol(self, hello: control_pb2.EdgeHelloRequest) -> Publication:
        """What the accepted hello carries, or :class:`~iop.errors.HelloRefused` (E1, E8)."""
        try:
            # The row is committed before the projection is read, so a barrier that runs in between counts this session.
            self._session = await self._edges.store.edge_sessions.open(self._edge, self._edges.clock.wall_ms())
        except IdentityRefused as error:
            raise HelloRefused("edge_denied", error.message) from None
        if self._ended:
            raise PeerDisconnected("the connection ended before its projection was read")
        publication = await self._edges.publisher.enrol(self._edge)
        self._check_held(hello, publication.projection)
        return publication

    def _check_held(self, hello: control_pb2.EdgeHelloRequest, current: Projection) -> None:
        if not hello.held_generation:
            return
        try:
            statement = verify_receipt(
                self._edges.pinned, hello.held_receipt, deployment_id=self._edges.deployment_id, edge=self._edge
            )
        except ReceiptRefused as error:
            raise HelloRefused(error.code, error.message) from None
        if (statement.generation, statement.digest) != (hello.held_generation, hello.held_digest):
            raise HelloRefused(ReceiptRefused.code, "the receipt is not of the projection that the hello says is held")
        ahead = statement.generation > current.generation
        other = statement.generation == current.generation and statement.digest != current.digest
        if ahead or other:
            self._log.error("control.store.behind", edge=self._edge, held=statement.generation)
            raise HelloRefused("store_behind", "the Edge proves a projection that this store never made")

    async def _ready(self, outcome: control_pb2.ProjectionOutcome) -> Message:
        if self._enrolled or not self._since_ms:
            raise UnexpectedMessage("an Edge gives its word on the hello's projection once")
        # Set before anything is awaited: the Edge may ask for a lease as soon as its word is in.
        self._enrolled = True
        self._sent.acknowledge(outcome)
        await self._record(outcome)
        self._log.info("control.edge.ready", edge=self._edge, generation=outcome.generation)
        return control_pb2.EdgeReadyResponse(accepted=True)

    async def _page(self, request: control_pb2.ProjectionPageRequest) -> Message:
        """A page, in a turn of its own: to make one takes as long as many other frames (E12)."""
        if self._paging:
            raise UnexpectedMessage("an Edge asks for one page at a time")
        self._paging = True
        await later(self._edges.clock)
        self._paging = False
        return self._sent.page(request)

    async def _lease(self, message: control_pb2.AcquireLeaseRequest) -> Message:
        if not self._enrolled:
            raise UnexpectedMessage("a lease may be asked for only after the word on the projection")
        if message.ByteSize() > LEASE_REQUEST_LIMIT:
            raise FrameTooLarge(f"a lease request has more than {LEASE_REQUEST_LIMIT} bytes")
        while not self._awaited:
            # Its word on a newer projection is due. No barrier waits for this session before that is recorded, so what
            # it leased could outlast a mutation that is called complete.
            if self._ended:
                raise PeerDisconnected("the session ended before it was ready")
            # the record and the session's end are both told, so there is nothing to look for in between
            await self._edges.change(self._edges.changes, self._edges.acknowledge_seconds)
        answer = await self._edges.desk.acquire(self._edge, message)
        if answer.refusal.retryable and self._sent.lacks(answer.refusal.generation):
            # L4: the newer projection goes out ahead of the refusal, on the same connection.
            await self._push(answer.refusal.generation, wait=False)
        return answer

    async def _push(self, generation: int, wait: bool = True) -> None:
        # Read only when it can be sent: whoever waited finds that a newer one went out, and sends nothing.
        await self._sending.acquire()
        asked = None
        try:
            asked = await self._send_newer(generation)
        finally:
            if asked is None:
                self._sending.release()
        if asked is None:
            return
        answered = self._answered(*asked)
        if wait:
            await answered
        else:
            self._watch(answered)

    async def _send_newer(self, generation: int) -> tuple[Offer, Deferred[Message]] | None:
        """Send a projection of ``generation`` or later, unless one was sent; answers what its answer will come to."""
        await self._edges.publisher.advance(generation)
        if self._peer is None or self._ended:
            return None
        publication = self._edges.publisher.publication(self._edge)
        if not self._sent.lacks(publication.projection.generation):
            return None
        offer = self._sent.next(publication)
        asked = self._peer.request(offer.message, self._edges.acknowledge_seconds)
        self._sent.wrote(offer.projection, whole=offer.whole)
        return offer, asked

    async def _answered(self, offer: Offer, asked: Deferred[Message]) -> None:
        """Take the answer to a push."""
        try:
            answer = await asked
        except RequestTimedOut:
            raise EdgeCutOff("the Edge did not acknowledge its projection in time") from None
        finally:
            self._sending.release()
        if not isinstance(answer, control_pb2.PrincipalProjectionApplyResponse):
            raise UnexpectedMessage("not an answer to a projection")
        outcome, generation = answer.outcome, offer.projection.generation
        match self._sent.answered(offer, outcome):
            case Word.ACKNOWLEDGED:
                await self._record(outcome)
            case Word.REFUSED:
                code = outcome.code if is_name(outcome.code) else "unknown"
                self._log.warn("control.edge.change_refused", edge=self._edge, generation=generation, code=code)
                self._watch(self._push(generation))

    async def _record(self, outcome: control_pb2.ProjectionOutcome) -> None:
        """Record what the Edge acknowledged, for every barrier to see."""
        self._awaited = await self._edges.store.edge_sessions.acknowledge(
            self._session, outcome.generation, outcome.unconfirmed
        )
        self._edges.changed()
        if not self._awaited:
            # A mutation that came between the hello's reading and its answer was published to nobody here.
            self._watch(self._push(self._sent.generation + 1))

    # -- small things -------------------------------------------------------------------------------------------------

    def _watch(self, work: Coroutine[Deferred[Any], Any, None]) -> None:
        """Run ``work``; whatever ends it early ends the connection, so no Edge is left behind unnoticed."""
        Deferred.fromCoroutine(work).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if isinstance(failure.value, IopError):
            self.close(failure.value)
        else:
            self._log.failure("control.edge.failed", failure, edge=self._edge)
            self.close(PeerDisconnected("the session failed on this side"))

    def _end_session(self) -> None:
        session, self._session = self._session, ""
        Deferred.fromCoroutine(self._edges.end(self._edge, session)).addErrback(
            lambda failure: self._log.failure("control.edge.failed", failure, edge=self._edge)
        )
