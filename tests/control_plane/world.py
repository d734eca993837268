"""A whole Control Plane in memory, with a principal, a slot and a route, and Edges and Nodes to play by hand."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.certificates import read_certificates, read_key
from iop.control_plane.config import load
from iop.control_plane.leases import Unseal, secret_place
from iop.control_plane.metrics import ControlPlaneMetrics
from iop.control_plane.plane import Keys, Plane, build_plane
from iop.crypto import at_rest
from iop.crypto.attestation import AttestationVerifier, attest
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring
from iop.crypto.node_keys import NodeKey, NodeKeys
from iop.crypto.tokens import Token, mint
from iop.errors import IopError
from iop.interfaces import IPeer, IPeerApplication
from iop.net.peer import PeerFactory
from iop.net.tls import TlsFiles
from iop.process.metrics import new_registry
from iop.records import Binding, Committed, NewSlot, RouteRecord, SlotRecord, TokenKind
from iop.secret import Secret
from iop.store.memory import MemoryStore
from iop.testing.clock import FakeClock
from iop.testing.peers import PeerPair, memory_identity
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import PROTOCOL_VERSION, Identity, Role, new_id
from iop.wire import control_pb2, runtime_pb2
from iop.wire.convert import binding_to_wire
from iop.wire.dialect import CONTROL
from tests.configurations import DEPLOYMENT, control_plane_toml

T = TypeVar("T")
Change: TypeAlias = control_pb2.PrincipalProjection | control_pb2.ProjectionDelta

CANARY = b"sk-canary-7b1f6f0c"
CONTROL_PLANE = Identity(TRUST_DOMAIN, Role.CONTROL_PLANE, "cp1")

CONFIG = control_plane_toml()


def result_of(deferred: Deferred[T]) -> T:
    """What a Deferred that has fired holds; its failure is raised."""
    results: list[Any] = []
    deferred.addBoth(results.append)
    if not results:
        raise AssertionError("the Deferred has not fired")
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    value: T = results[0]
    return value


@implementer(IPeerApplication)
@dataclass
class PlayedEdge:
    """An Edge that does only what a test says; it acknowledges projections unless told not to."""

    acknowledges: bool = True
    received: list[Message] = field(default_factory=list)
    lost_for: IopError | None = None
    peer: IPeer | None = None
    held: list[Deferred[Message]] = field(default_factory=list)

    def connected(self, peer: IPeer) -> None:
        self.peer = peer

    @property
    def projections(self) -> list[Change]:
        """What was pushed to it, oldest first."""
        return [
            change_of(message)
            for message in self.received
            if isinstance(message, control_pb2.PrincipalProjectionApplyRequest)
        ]

    def asked(self, message: Message) -> Deferred[Message]:
        self.received.append(message)
        answer: Deferred[Message] = Deferred()
        if self.acknowledges and isinstance(message, control_pb2.PrincipalProjectionApplyRequest):
            answer.callback(control_pb2.PrincipalProjectionApplyResponse(outcome=applied(change_of(message))))
        else:
            self.held.append(answer)
        return answer

    def notified(self, message: Message) -> None:
        self.received.append(message)

    def lost(self, reason: IopError) -> None:
        self.lost_for = reason


def change_of(message: control_pb2.PrincipalProjectionApplyRequest) -> Change:
    """What is pushed: a change, or a whole projection."""
    return message.delta if message.HasField("delta") else message.projection


def applied(change: Change) -> control_pb2.ProjectionOutcome:
    """The word of an Edge that applied ``change``."""
    return control_pb2.ProjectionOutcome(
        result=control_pb2.PROJECTION_RESULT_APPLIED, generation=change.generation, digest=change.digest
    )


def refused(generation: int, code: str) -> control_pb2.ProjectionOutcome:
    """The word of an Edge that refused something, and has ``generation`` in force."""
    return control_pb2.ProjectionOutcome(result=control_pb2.PROJECTION_RESULT_REFUSED, generation=generation, code=code)


@dataclass
class Connection:
    """A played Edge, connected."""

    edge: PlayedEdge
    pair: PeerPair

    def ask(self, message: Message, timeout_seconds: float = 30.0) -> Deferred[Message]:
        """Ask and move everything."""
        if self.edge.peer is None:
            raise AssertionError("not connected")
        answer = self.edge.peer.request(message, timeout_seconds)
        self.pair.pump()
        return answer


@dataclass
class PlayedNode:
    """A Node's certificate and keys."""

    name: str
    files: TlsFiles
    keys: NodeKeys

    def attestation(
        self,
        edge: str,
        *,
        key: NodeKey | None = None,
        node: str = "",
        public_key: bytes = b"",
        expires_ms: int = 0,
        trust_domain: str = TRUST_DOMAIN,
    ) -> runtime_pb2.NodeKeyAttestation:
        """Signed with this Node's certificate key, whatever it says."""
        key = key or self.keys.current()
        return attest(
            read_key(self.files.key),
            read_certificates(self.files.certificate),
            trust_domain=trust_domain,
            edge=edge,
            node=node or self.name,
            public_key=public_key or key.public_key,
            expires_ms=expires_ms or key.attested_until_ms,
        )


class World:
    """Everything, on one fake clock that stands at the real present (certificates are valid now)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.clock = FakeClock(wall_ms=time.time_ns() // 1_000_000)
        self.pki = Pki(folder / "pki")
        self.keyring = Keyring.create(folder / "keyring.json")
        self.issuer = Issuer.create(folder / "issuer.json")
        self.pinned = PinnedIssuers([self.issuer.public_key])
        self.store = MemoryStore(DEPLOYMENT, self.clock.wall_ms)
        (folder / "control-plane.toml").write_text(CONFIG)
        self.config = load(folder / "control-plane.toml")
        self.unsealed = 0
        self.plane = self.build()
        self.tokens: dict[tuple[str, TokenKind], Token] = {}
        self.pairs: list[PeerPair] = []

    def build(self, unseal: Unseal | None = None) -> Plane:
        """A Control Plane on this world's store; the count of opened secrets is shared, metrics are its own."""
        self.registry = new_registry()
        keys = Keys(
            keyring=self.keyring,
            issuer=self.issuer,
            pinned=self.pinned,
            verifier=AttestationVerifier([self.pki.authority.certificate], TRUST_DOMAIN),
        )
        metrics = ControlPlaneMetrics(self.registry)
        return build_plane(
            self.config,
            self.store,
            keys,
            self.clock,
            metrics,
            unseal=unseal or self._counted,
            # the collector is one for all tests of a process
            spare=lambda: None,
        )

    def _counted(self, keyring: Keyring, place: at_rest.Place, sealed: Any) -> Secret:
        self.unsealed += 1
        return at_rest.open_secret(keyring, place, sealed)

    # -- people -------------------------------------------------------------------------------------------------------

    def principal(self, name: str) -> str:
        """A principal with one token of each kind."""
        tokens = {kind: mint(kind) for kind in TokenKind}
        made = result_of(self.store.principals.create(name, [token.record for token in tokens.values()], "host:test"))
        self.tokens |= {(name, kind): token for kind, token in tokens.items()}
        return made.value.principal

    def token_text(self, name: str, kind: TokenKind) -> str:
        """The token of ``name``, as it was printed once."""
        return bytes(self.tokens[name, kind].text.reveal()).decode()

    def slot(
        self, principal: str, *, name: str = "main", secret: bytes = CANARY, profile: str = "openai"
    ) -> SlotRecord:
        """A slot with a sealed secret."""
        slot = new_id()
        place = secret_place(DEPLOYMENT, principal, slot, profile, "lab", 1)
        sealed = at_rest.seal_secret(self.keyring, place, Secret(secret))
        new = NewSlot(slot, principal, name, profile, "lab", sealed)
        return result_of(self.store.slots.create(new, "token:test")).value

    def rotate(self, slot: SlotRecord, secret: bytes) -> Committed[SlotRecord]:
        """Another secret in a slot."""
        revision = slot.credential_revision + 1
        place = secret_place(DEPLOYMENT, slot.principal, slot.slot, slot.profile, slot.target, revision)
        sealed = at_rest.seal_secret(self.keyring, place, Secret(secret))
        return result_of(self.store.slots.rotate(slot.principal, slot.slot, sealed, slot.revision, "token:test"))

    def route(self, principal: str, slot: str, model: str = "small", expected: int | None = None) -> RouteRecord:
        """A route to ``slot``."""
        put = self.store.routes.put(principal, model, slot, "upstream-small", "", expected, "token:test")
        return result_of(put).value

    # -- machines -----------------------------------------------------------------------------------------------------

    def node(self, name: str = "node1") -> PlayedNode:
        """A Node with a certificate of this world's authority."""
        return PlayedNode(name, self.pki.issue(Role.NODE, name), NodeKeys(self.clock))

    def connect(self, name: str = "edge1", edge: PlayedEdge | None = None) -> Connection:
        """A played Edge with TLS up and nothing said."""
        edge = edge or PlayedEdge()
        application: Callable[[], IPeerApplication] = lambda: edge  # noqa: E731
        pair = PeerPair(
            PeerFactory(CONTROL, initiator=True, application=application, clock=self.clock, identify=memory_identity),
            PeerFactory(
                CONTROL,
                initiator=False,
                application=self.plane.edges.application,
                clock=self.clock,
                identify=memory_identity,
            ),
            dialler=Identity(TRUST_DOMAIN, Role.EDGE, name),
            listener=CONTROL_PLANE,
        )
        self.pairs.append(pair)
        return Connection(edge, pair)

    def greeted(self, name: str, edge: PlayedEdge | None = None) -> tuple[Connection, control_pb2.EdgeHelloResponse]:
        """A played Edge whose hello was accepted, and that has not said more."""
        connection = self.connect(name, edge)
        answer = result_of(connection.ask(hello(name)))
        if not isinstance(answer, control_pb2.EdgeHelloResponse):
            raise AssertionError(answer)
        return connection, answer

    def enrolled(
        self, name: str = "edge1", edge: PlayedEdge | None = None
    ) -> tuple[Connection, control_pb2.EdgeHelloResponse]:
        """A played Edge that said hello and gave its word on the projection."""
        connection, answer = self.greeted(name, edge)
        ready = connection.ask(control_pb2.EdgeReadyRequest(outcome=applied(answer.projection)))
        if not getattr(result_of(ready), "accepted", False):
            raise AssertionError("not accepted")
        return connection, answer

    def pump(self) -> None:
        """Move every connection until nothing moves."""
        for pair in self.pairs:
            pair.pump()

    def pass_time(self, seconds: float, step: float = 0.1) -> None:
        """Let time pass in steps, moving every connection after each."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.pump()


def hello(edge: str, **held: Any) -> control_pb2.EdgeHelloRequest:
    """An Edge's hello."""
    return control_pb2.EdgeHelloRequest(edge_id=edge, protocol_version=PROTOCOL_VERSION, **held)


class WorldCase(SynchronousTestCase):
    """A test with a world in which Ann has a slot and a route, and a lease request that would succeed."""

    def setUp(self) -> None:
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        self.world = World(folder / "world")
        self.ann = self.world.principal("ann")
        self.slot = self.world.slot(self.ann)
        self.route = self.world.route(self.ann, self.slot.slot)
        self.node = self.world.node()

    def generation(self) -> int:
        """The store's."""
        return result_of(self.world.store.projections.generation())

    def binding(self, **changed: Any) -> Binding:
        """The true binding, with ``changed`` fields."""
        fields: dict[str, Any] = {
            "principal": self.ann,
            "route": self.route.route,
            "slot": self.slot.slot,
            "profile": self.slot.profile,
            "target": self.slot.target,
            "node": self.node.name,
            "credential_revision": self.slot.credential_revision,
            "route_revision": self.route.revision,
            "generation": self.generation(),
        }
        return Binding(**(fields | changed))

    def question(
        self, edge: str = "edge1", binding: Binding | None = None, **changed: Any
    ) -> control_pb2.AcquireLeaseRequest:
        """The lease request that would succeed, with ``changed`` fields."""
        token = self.world.tokens["ann", TokenKind.USE].record
        fields: dict[str, Any] = {
            "request_id": "req-1",
            "binding": binding_to_wire(binding or self.binding()),
            "token_id": token.token_id,
            "token_proof": token.proof,
            "recipient_public_key": self.node.keys.current().public_key,
            "attestation": self.node.attestation(edge),
        }
        return control_pb2.AcquireLeaseRequest(**(fields | changed))
