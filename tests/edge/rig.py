"""An Edge's inside with both neighbours in memory: a Control Plane, Nodes and callers that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.core.pool import Pool
from iop.core.projection import Projection, projection_digest
from iop.crypto import possession
from iop.crypto.node_keys import NodeKeys
from iop.crypto.tokens import Token, mint
from iop.edge.api import Api
from iop.edge.attempts import Attempts
from iop.edge.commands import Commands
from iop.edge.config import NodeTable, ProviderTable
from iop.edge.control_link import ControlLink
from iop.edge.door import Door
from iop.edge.events import Events, Notes
from iop.edge.leases import Leases
from iop.edge.metrics import EdgeMetrics
from iop.edge.nodes import Nodes
from iop.edge.offers import Change, Offers
from iop.edge.operations import Operations
from iop.edge.projections import Projections
from iop.edge.revocation import Revocation
from iop.edge.status import Status
from iop.errors import HelloRefused, IopError
from iop.interfaces import IPeer, IPeerApplication
from iop.net.http1 import Headers, IExchange, RequestHead
from iop.net.peer import PeerFactory
from iop.process.metrics import new_registry
from iop.records import ProjectionSnapshot, RouteEntry, TokenEntry, TokenKind
from iop.testing.clock import FakeClock
from iop.testing.peers import PeerPair, memory_identity
from iop.testing.recorded import RecordedPeer
from iop.units import NODE_WORD_SECONDS, PROTOCOL_VERSION, Identity, Role
from iop.wire import control_pb2, runtime_pb2
from iop.wire.convert import projection_to_wire
from iop.wire.dialect import CONTROL, RUNTIME

DOMAIN: Final = "example.org"
DEPLOYMENT: Final = "deployment-1"
EDGE: Final = "edge-1"
CONTROL_PLANE: Final = "control-plane-1"
LEASE_SECONDS: Final = 60
LONG_BYTES: Final = 64 * 1024

ADA_TOKEN: Final[Token] = mint(TokenKind.USE)
ADA: Final = TokenEntry(ADA_TOKEN.record.token_id, "ada", ADA_TOKEN.record.digest)
SMALL: Final = RouteEntry("route-1", "ada", "slot-1", "openai", "openai", "small", "gpt-small", "", 1, 1)
FOREIGN: Final = replace(SMALL, route="route-2", principal="bob", slot="slot-2", model="large")
FIRST: Final = ProjectionSnapshot(5, (ADA,), (SMALL, FOREIGN))


def identity(role: Role, name: str) -> Identity:
    """The identity of a certificate of these tests."""
    return Identity(DOMAIN, role, name)


def text_of(token: Token) -> str:
    """The token as its owner types it."""
    return bytes(token.text.reveal()).decode("ascii")


def wire_of(snapshot: ProjectionSnapshot) -> control_pb2.PrincipalProjection:
    """A snapshot as it travels."""
    return projection_to_wire(snapshot, projection_digest(snapshot.tokens, snapshot.routes))


def receipt_of(projection: Change, *, edge: str = EDGE, deployment: str = DEPLOYMENT) -> control_pb2.ProjectionReceipt:
    """A receipt that names this projection, or what this delta leads to; the Edge does not verify its signature."""
    statement = control_pb2.ProjectionReceiptStatement(
        issuer_key_id=b"k" * 32,
        deployment_id=deployment,
        edge=edge,
        generation=projection.generation,
        digest=projection.digest,
    )
    return control_pb2.ProjectionReceipt(statement=statement.SerializeToString(), signature=b"s" * 64)


def offered(
    projections: Projections, clock: FakeClock, change: Change, receipt: control_pb2.ProjectionReceipt | None = None
) -> Deferred[control_pb2.ProjectionOutcome]:
    """Offer a projection that needs no further page, as a connection of its own would; the word on it."""
    peer = RecordedPeer(identity(Role.CONTROL_PLANE, CONTROL_PLANE))
    word = Offers(projections, peer, clock).take(change, receipt or receipt_of(change))
    clock.advance(0)
    return word


def lease_for(request: control_pb2.AcquireLeaseRequest, now_ms: int) -> control_pb2.AcquireLeaseResponse:
    """The lease that was asked for."""
    statement = runtime_pb2.LeaseStatement(
        lease_id="lease",
        issuer_key_id=b"k" * 32,
        deployment_id=DEPLOYMENT,
        trust_domain=DOMAIN,
        edge=EDGE,
        binding=request.binding,
        token_id=request.token_id,
        not_before_ms=now_ms,
        expires_ms=now_ms + LEASE_SECONDS * 1000,
        recipient_public_key=request.recipient_public_key,
    )
    sealed = runtime_pb2.SealedLease(statement=statement.SerializeToString(), box=b"box", signature=b"s" * 64)
    return control_pb2.AcquireLeaseResponse(lease=sealed)


def refusal(code: str, *, again: bool = False, generation: int = 0) -> control_pb2.AcquireLeaseResponse:
    """A refused lease."""
    return control_pb2.AcquireLeaseResponse(
        refusal=control_pb2.LeaseRefusal(code=code, message="no", retryable=again, generation=generation)
    )


@implementer(IPeerApplication)
class FakeControlPlane:
    """A Control Plane that answers what a test sets.

    ``lease`` answers a lease request; by default with a lease. ``asked_for`` are the lease requests that came,
    ``pages`` the requests for pages, which ``page`` answers.
    """

    peer: IPeer

    def __init__(self, clock: FakeClock, snapshot: ProjectionSnapshot) -> None:
        projection = wire_of(snapshot)
        self.hello: control_pb2.EdgeHelloRequest | None = None
        self.hello_answer = control_pb2.EdgeHelloResponse(
            accepted=True, deployment_id=DEPLOYMENT, projection=projection, receipt=receipt_of(projection)
        )
        self.words: list[control_pb2.ProjectionOutcome] = []
        self.asked_for: list[control_pb2.AcquireLeaseRequest] = []
        self.lease: Callable[[control_pb2.AcquireLeaseRequest], Message | Deferred[Message]] = lambda request: (
            lease_for(request, clock.wall_ms())
        )
        #: The lifecycle events and the events of commands that were told.
        self.events: list[control_pb2.EdgeNodeEvent] = []
        self.command_events: list[control_pb2.EdgeCommandEvent] = []
        self.pages: list[control_pb2.ProjectionPageRequest] = []
        self.page: Deferred[Message] = Deferred()
        self.lost_for: IopError | None = None

    def connected(self, peer: IPeer) -> None:
        self.peer = peer

    def asked(self, message: Message) -> Deferred[Message]:
        match message:
            case control_pb2.ProjectionPageRequest():
                self.pages.append(message)
                return self.page
            case control_pb2.EdgeHelloRequest():
                self.hello = message
                return succeed(self.hello_answer)
            case control_pb2.EdgeReadyRequest():
                self.words.append(message.outcome)
                return succeed(control_pb2.EdgeReadyResponse(accepted=True))
            case control_pb2.AcquireLeaseRequest():
                self.asked_for.append(message)
                answer = self.lease(message)
                return answer if isinstance(answer, Deferred) else succeed(answer)
        raise AssertionError(f"an Edge sent {message.DESCRIPTOR.name}")

    def notified(self, message: Message) -> None:
        match message:
            case control_pb2.EdgeNodeEvent():
                self.events.append(message)
            case control_pb2.EdgeCommandEvent():
                self.command_events.append(message)
            case _:
                raise AssertionError(f"an Edge sent {message.DESCRIPTOR.name}")

    def lost(self, reason: IopError) -> None:
        self.lost_for = reason

    def push(self, snapshot: ProjectionSnapshot) -> None:
        """Send a projection; the Edge's word on it is appended to ``words``."""
        projection = wire_of(snapshot)
        self.send(control_pb2.PrincipalProjectionApplyRequest(projection=projection, receipt=receipt_of(projection)))

    def send(self, request: control_pb2.PrincipalProjectionApplyRequest) -> None:
        """Send what changed; the Edge's word on it is appended to ``words``, if one comes."""
        asked = self.peer.request(request, 5.0)
        asked.addCallbacks(self._took_word, lambda failure: failure.trap(IopError))

    def _took_word(self, answer: Message) -> None:
        assert isinstance(answer, control_pb2.PrincipalProjectionApplyResponse)
        self.words.append(answer.outcome)


@implementer(IPeerApplication)
class FakeNode:
    """A Node that registers on its own, step by step, and records what it is sent.

    :param name: what its hello claims.
    """

    peer: IPeer

    def __init__(self, clock: FakeClock, name: str) -> None:
        self.name = name
        self.keys = NodeKeys(clock)
        self.registers = True
        self.answers: list[Message] = []
        self.received: list[Message] = []
        #: The code its hello was refused with.
        self.refusal = ""
        self.lost_for: IopError | None = None

    # -- IPeerApplication ---------------------------------------------------------------------------------------------

    def connected(self, peer: IPeer) -> None:
        self.peer = peer
        if self.registers:
            Deferred.fromCoroutine(self._register()).addErrback(self._refused)

    def asked(self, message: Message) -> Deferred[Message]:
        raise AssertionError(f"an Edge sent {message.DESCRIPTOR.name}")

    def notified(self, message: Message) -> None:
        self.received.append(message)

    def lost(self, reason: IopError) -> None:
        self.lost_for = reason

    # -- what a test makes it do --------------------------------------------------------------------------------------

    def ask(self, message: Message) -> None:
        """Ask the Edge; the answer is appended to ``answers``."""
        asked = self.peer.request(message, 5.0)
        asked.addCallbacks(self.answers.append, self._refused)

    def hello(self) -> runtime_pb2.NodeHelloRequest:
        return runtime_pb2.NodeHelloRequest(node_id=self.name, protocol_version=PROTOCOL_VERSION)

    def offer(self, public_key: bytes | None = None) -> runtime_pb2.NodeKeyOfferRequest:
        """The offer of a key, with an attestation of the right shape."""
        key = self.keys.current().public_key if public_key is None else public_key
        statement = runtime_pb2.NodeKeyStatement(
            trust_domain=DOMAIN, edge=EDGE, node=self.name, public_key=key, expires_ms=2_000_000_000_000
        )
        attestation = runtime_pb2.NodeKeyAttestation(
            certificate_chain=[b"leaf"], statement=statement.SerializeToString(), signature=b"signature"
        )
        return runtime_pb2.NodeKeyOfferRequest(public_key=key, attestation=attestation)

    def proof(self, sealed_challenge: bytes) -> runtime_pb2.NodeKeyProofRequest:
        key = self.keys.current()
        answer = possession.answer(
            key.private_key,
            sealed_challenge,
            edge=EDGE,
            node=self.name,
            public_key=key.public_key,
            exporter=self.peer.exporter(possession.EXPORTER_LABEL, possession.EXPORTER_BYTES),
        )
        return runtime_pb2.NodeKeyProofRequest(public_key=key.public_key, answer=answer)

    def last_run(self) -> runtime_pb2.RunRequest:
        """The newest run it was given."""
        return [message for message in self.received if isinstance(message, runtime_pb2.RunRequest)][-1]

    def bodies(self, run: int) -> bytes:
        """The request body of a run."""
        pieces = [message for message in self.received if isinstance(message, runtime_pb2.RunBody)]
        return b"".join(piece.data for piece in pieces if piece.run == run)

    def head(self, status: int = 200, **headers: str) -> None:
        """Send a response head for the newest run."""
        fields = [runtime_pb2.HeaderField(name=name.replace("_", "-"), value=value) for name, value in headers.items()]
        self.peer.notify(runtime_pb2.RunHead(run=self.last_run().run, status=status, headers=fields))

    def body(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of the response body."""
        self.peer.notify(runtime_pb2.RunBody(run=self.last_run().run, data=data, last=last))

    def started(self) -> None:
        """Say that the newest run goes on."""
        self.peer.notify(runtime_pb2.RunStarted(run=self.last_run().run))

    def fail(self, code: str, *, started: bool) -> None:
        """End the newest run without a whole response."""
        self.peer.notify(runtime_pb2.RunFailed(run=self.last_run().run, code=code, message="no", started=started))

    def _refused(self, failure: Failure) -> None:
        failure.trap(IopError)
        if isinstance(failure.value, HelloRefused):
            self.refusal = failure.value.reason

    async def _register(self) -> None:
        hello = await self.peer.request(self.hello(), 5.0)
        assert isinstance(hello, runtime_pb2.NodeHelloResponse)
        offered = await self.peer.request(self.offer(), 5.0)
        assert isinstance(offered, runtime_pb2.NodeKeyOfferResponse)
        proved = await self.peer.request(self.proof(offered.sealed_challenge), 5.0)
        served = [provider.provider_id for provider in hello.config.providers]
        ready = await self.peer.request(runtime_pb2.NodeReadyRequest(served=served), 5.0)
        self.answers += [hello, proved, ready]


@implementer(IExchange)
@dataclass(eq=False)
class MemoryExchange:
    """A caller's request and the answer to it, in memory."""

    head: RequestHead
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    aborted: bool = False
    left: bool = False
    _gone: Callable[[], object] = lambda: None
    _pause: Callable[[], object] = lambda: None
    _resume: Callable[[], object] = lambda: None

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.start(status, headers)
        self.write(body)
        self.finish()

    def start(self, status: int, headers: Headers) -> None:
        assert not self.status, "answered twice"
        self.status = status
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in headers}

    def write(self, data: bytes) -> None:
        assert self.status, "a body without a head"
        assert not self.whole, "a body after its end"
        self.body += data

    def finish(self) -> None:
        self.whole = True

    def abort(self) -> None:
        self.aborted = True

    def on_gone(self, callback: Callable[[], object]) -> None:
        self._gone = callback
        if self.left:
            callback()

    def on_writable(self, pause: Callable[[], object], resume: Callable[[], object]) -> None:
        self._pause, self._resume = pause, resume

    def go(self) -> None:
        """The caller goes away."""
        self.left = True
        self._gone()

    def pause(self) -> None:
        """The caller does not keep up."""
        self._pause()

    def resume(self) -> None:
        """The caller caught up."""
        self._resume()


def provider(provider_id: str = "openai-main", **changes: object) -> ProviderTable:
    """A provider of the catalogue."""
    fields: dict[str, object] = {
        "id": provider_id,
        "category": "api",
        "profile": "openai",
        "target": "openai",
        "models": ("*",),
        "capacity": 2,
    }
    return ProviderTable.model_validate({**fields, **changes})


class Rig:
    """The Edge between its neighbours.

    :param directory: its state folder.
    :param nodes: the catalogue.
    :param request_seconds: how long a request may take until a Node has its run.
    :param reconnect_seconds: how long a Node that went away is waited for.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[NodeTable] = (),
        *,
        request_seconds: float = 30.0,
        reconnect_seconds: float = 0.0,
    ) -> None:
        self.clock = FakeClock()
        self.settled = 0
        self.registry = new_registry()
        metrics = EdgeMetrics(self.registry)
        notes = self.notes = Notes()
        self.door = Door()
        self.events = Events(notes, self.clock)
        #: How reloads go, and how many there were.
        self.reload: Deferred[None] = succeed(None)
        self.reloads = 0
        self.projections = Projections(
            directory,
            DEPLOYMENT,
            EDGE,
            self.clock,
            self._applied,
            lambda: self.revocation.unanswered,
        )
        self.projections.load()
        self.pool = Pool(self.clock, 256, reconnect_seconds)
        self.nodes = Nodes(
            EDGE,
            DOMAIN,
            {node.name: node for node in nodes},
            self.pool,
            self.clock,
            self.events,
            lost=self._node_lost,
            proved=self._key_proved,
        )
        operations = Operations(
            nodes,
            self.nodes,
            self.pool,
            self.door,
            self.events,
            self.clock,
            flush=self._flush,
            resync=self._resync,
            reload=self._reload,
        )
        self.commands = Commands(operations, notes, self.clock, managed=True)
        self.link = ControlLink(
            self.projections,
            self.clock,
            metrics,
            deployment=DEPLOYMENT,
            staleness_seconds=300.0,
            lease_call_seconds=5.0,
            settled=self._settled,
            status=Status(EDGE, nodes, self.nodes, self.pool, self.door, self.events),
            notes=notes,
            commands=self.commands,
        )
        self.leases = Leases(self.link.acquire, self.clock, metrics, DEPLOYMENT, EDGE, limit=1000)
        self.revocation = Revocation(self.leases, self.clock, NODE_WORD_SECONDS)
        #: What was told of each projection that came into force.
        self.told: list[Deferred[int]] = []
        metrics.watch(self.link, self.nodes, self.pool, nodes)
        self.attempts = Attempts(
            self.link,
            self.pool,
            self.nodes,
            self.leases,
            self.revocation,
            self.clock,
            metrics,
            request_seconds,
            queue_seconds=30.0,
            long_context_bytes=LONG_BYTES,
        )
        self.metrics = metrics
        self.api = Api(self.link, self.attempts, self.door, self.clock, metrics, 1024 * 1024)
        self.control_plane = FakeControlPlane(self.clock, FIRST)
        self.control_pair: PeerPair | None = None
        self._pairs: list[PeerPair] = []

    def dial(self) -> PeerPair:
        """Connect the Edge to :attr:`control_plane`."""
        self.control_pair = PeerPair(
            PeerFactory(
                CONTROL,
                initiator=True,
                application=self.link.application,
                clock=self.clock,
                identify=memory_identity,
            ),
            PeerFactory(
                CONTROL,
                initiator=False,
                application=lambda: self.control_plane,
                clock=self.clock,
                identify=memory_identity,
            ),
            dialler=identity(Role.EDGE, EDGE),
            listener=identity(Role.CONTROL_PLANE, CONTROL_PLANE),
        )
        self._pairs.append(self.control_pair)
        self.pump()
        return self.control_pair

    def connect(self, node: FakeNode, certificate: str | None = None) -> PeerPair:
        """Connect a Node whose certificate names ``certificate``, by default what its hello claims."""
        pair = PeerPair(
            PeerFactory(RUNTIME, initiator=True, application=lambda: node, clock=self.clock, identify=memory_identity),
            PeerFactory(
                RUNTIME,
                initiator=False,
                application=self.nodes.application,
                clock=self.clock,
                identify=memory_identity,
            ),
            dialler=identity(Role.NODE, certificate or node.name),
            listener=identity(Role.EDGE, EDGE),
        )
        self._pairs.append(pair)
        self.pump()
        return pair

    def node(self, name: str) -> FakeNode:
        """A connected, ready Node."""
        node = FakeNode(self.clock, name)
        self.connect(node)
        return node

    def pump(self) -> None:
        """Let everything that was written arrive, and everything that is due at once happen."""
        for _ in range(8):
            for pair in self._pairs:
                pair.pump()
            self.clock.advance(0)

    def advance(self, seconds: float) -> None:
        """Let time pass, keeping connections alive."""
        while seconds > 0:
            step = min(seconds, 2.0)
            self.clock.advance(step)
            self.pump()
            seconds -= step

    def request(
        self,
        body: bytes = b'{"model": "small"}',
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        token: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> MemoryExchange:
        """Send a caller's request, as the HTTP server would."""
        authorization = (b"authorization", b"Bearer " + (token or text_of(ADA_TOKEN)).encode())
        given = [authorization, *headers] if token != "" else list(headers)
        exchange = MemoryExchange(RequestHead(method, path, "", tuple(given)))
        wanted = self.api.headed(exchange)
        if wanted is not None:
            wanted.take(bytearray(body if method == "POST" else b""))
        self.pump()
        return exchange

    def _applied(self, projection: Projection) -> Deferred[int]:
        seen: Deferred[int] = Deferred()
        self.told.append(seen)

        def tell(unconfirmed: int) -> int:
            seen.callback(unconfirmed)
            return unconfirmed

        return self.revocation.applied(projection).addCallback(tell)

    def _node_lost(self, node: str) -> None:
        self.leases.forget_node(node)

    def _key_proved(self, node: str, public_key: bytes) -> None:
        self.leases.forget_key(node, keep=public_key)
        self.revocation.proved(node, public_key)

    def _reload(self) -> Deferred[None]:
        self.reloads += 1
        return self.reload

    def _flush(self) -> int:
        return self.leases.flush()

    async def _resync(self) -> None:
        await self.link.resync()

    def _settled(self) -> None:
        self.events.edge_ready()
        self.settled += 1


def node_table(name: str, *providers: ProviderTable) -> NodeTable:
    """A Node of the catalogue, by default with one provider."""
    return NodeTable(name=name, providers=providers or (provider(),))
