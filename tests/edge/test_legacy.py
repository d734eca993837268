"""An Edge in legacy mode: the whole role but its listeners, with a Control Plane and Nodes in memory (E16, E17)."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.core.headers import CREDENTIALS
from iop.crypto.tokens import mint
from iop.edge.authority import ILeases, ILink
from iop.edge.config import load
from iop.edge.legacy import LegacyLink, NoLeases
from iop.edge.parts import NO_NODE, Parts
from iop.errors import ControlPlaneUnavailable, IopError, PeerDisconnected, UnexpectedMessage
from iop.interfaces import IPeerApplication
from iop.net.http1 import IHttpApplication, RequestHead
from iop.net.peer import PeerFactory
from iop.process.metrics import new_registry
from iop.records import TokenKind
from iop.testing.clock import FakeClock
from iop.testing.peers import PeerPair, memory_identity
from iop.units import Role
from iop.wire import control_pb2
from iop.wire.dialect import CONTROL, RUNTIME
from tests.edge.rig import (
    CONTROL_PLANE,
    DEPLOYMENT,
    EDGE,
    FIRST,
    FakeControlPlane,
    FakeNode,
    MemoryExchange,
    identity,
    receipt_of,
    text_of,
    wire_of,
)
from tests.edge.test_config import LEGACY

ADA, BOB = mint(TokenKind.USE), mint(TokenKind.USE)
TOML = LEGACY.replace("a" * 64, ADA.record.digest.hex()) + (
    f'[[callers]]\nname = "bob"\nsha256 = "{BOB.record.digest.hex()}"\n'
)
CHAT = b'{"model": "m"}'


class LegacyCase(SynchronousTestCase):
    def setUp(self) -> None:
        path = Path(self.mktemp())
        path.write_text(TOML)
        self.clock = FakeClock()
        self.registry: CollectorRegistry = new_registry()
        self.edge = Parts(load(path), self.clock, self.registry, settled=lambda: None, reload=lambda: succeed(None))
        self.link = self.edge.link
        self.control_plane = FakeControlPlane(self.clock, FIRST)
        self.control_plane.hello_answer = control_pb2.EdgeHelloResponse(accepted=True, deployment_id=DEPLOYMENT)
        self.pairs: list[PeerPair] = []

    def pump(self) -> None:
        for _ in range(8):
            for pair in self.pairs:
                pair.pump()
            self.clock.advance(0)

    def dial(self) -> None:
        """Connect to the Control Plane, which speaks the whole wire."""
        clock, link = self.clock, self.link
        self.pairs.append(
            PeerPair(
                PeerFactory(
                    link.dialect, initiator=True, application=link.application, clock=clock, identify=memory_identity
                ),
                PeerFactory(
                    CONTROL,
                    initiator=False,
                    application=lambda: self.control_plane,
                    clock=clock,
                    identify=memory_identity,
                ),
                dialler=identity(Role.EDGE, EDGE),
                listener=identity(Role.CONTROL_PLANE, CONTROL_PLANE),
            )
        )
        self.pump()

    def node(self) -> FakeNode:
        """The Node of the catalogue, ready."""
        node, clock, nodes = FakeNode(self.clock, "node-1"), self.clock, self.edge.nodes
        self.pairs.append(
            PeerPair(
                PeerFactory(RUNTIME, initiator=True, application=lambda: node, clock=clock, identify=memory_identity),
                PeerFactory(
                    RUNTIME, initiator=False, application=nodes.application, clock=clock, identify=memory_identity
                ),
                dialler=identity(Role.NODE, "node-1"),
                listener=identity(Role.EDGE, EDGE),
            )
        )
        self.pump()
        return node

    def request(self, token: str, body: bytes = CHAT, path: str = "/v1/chat/completions") -> MemoryExchange:
        head = RequestHead(
            "GET" if path.startswith("/v1/models") else "POST",
            path,
            "",
            ((b"authorization", b"Bearer " + token.encode()), (b"content-type", b"application/json")),
        )
        exchange = MemoryExchange(head)
        application: IHttpApplication = self.edge.api
        wanted = application.headed(exchange)
        if wanted is not None:
            wanted.take(bytearray(body if head.method == "POST" else b""))
        self.pump()
        return exchange


class RequestTests(LegacyCase):
    def test_chat(self) -> None:
        """E17, C24: a caller of the configuration is served without a Control Plane, by a run without lease."""
        self.assertEqual(self.edge.not_ready(), [NO_NODE])
        node = self.node()
        self.assertEqual(self.edge.not_ready(), [])
        exchange = self.request(text_of(ADA))
        run = node.last_run()
        self.assertFalse(run.HasField("lease"))
        self.assertEqual((run.binding.profile, run.binding.principal, run.provider_id), ("none", "ada", "main"))
        self.assertEqual(node.bodies(run.run), CHAT)
        self.assertFalse({header.name for header in run.headers} & CREDENTIALS)
        node.head(200)
        node.body(b"{}", last=True)
        self.pump()
        self.assertEqual((exchange.status, exchange.body, exchange.whole), (200, b"{}", True))

    def test_strangers(self) -> None:
        """P20, C25: an unknown token is refused, and so is the digest of a known one in a token's place."""
        node = self.node()
        digest = ADA.record.digest.hex()
        for token in (text_of(mint(TokenKind.USE)), digest, f"iop_{digest}"[:53], ""):
            self.assertEqual(self.request(token).status, 401)
        self.assertEqual(node.received, [])

    def test_models(self) -> None:
        """E17: every caller has every model of the catalogue, and no other."""
        self.node()
        for token in (ADA, BOB):
            self.assertIn(b'"m"', self.request(text_of(token), path="/v1/models").body)
        self.assertEqual(self.request(text_of(BOB), b'{"model": "other"}').status, 404)

    def test_a_node_that_is_managed(self) -> None:
        """C25: one that wants a lease refuses the run, and nothing of it was started."""
        node = self.node()
        exchange = self.request(text_of(ADA))
        node.fail("lease_refused", started=False)
        self.pump()
        self.assertGreaterEqual(exchange.status, 500)

    def test_parts(self) -> None:
        """C24: there is nothing to flush, to send again or to wait for."""
        verifyObject(ILink, self.link)
        leases = NoLeases()
        verifyObject(ILeases, leases)
        leases.forget_before(1)
        leases.forget_node("node-1")
        leases.forget_key("node-1", b"")
        self.assertEqual(leases.flush(), 0)
        self.successResultOf(self.link.reached(2, 1.0))
        self.failureResultOf(Deferred.fromCoroutine(self.link.resync()), ControlPlaneUnavailable)
        self.link.load()
        self.assertFalse(Path("state").exists())


class ControlPlaneTests(LegacyCase):
    def test_hello(self) -> None:
        """E16: it says that it is in legacy mode and what it is, and presents nothing."""
        verifyObject(IPeerApplication, self.link.application())
        self.dial()
        self.assertEqual(
            self.control_plane.hello,
            control_pb2.EdgeHelloRequest(edge_id=EDGE, protocol_version=1, legacy=True),
        )
        self.assertEqual((self.link.ready, self.control_plane.words, self.control_plane.asked_for), (True, [], []))

    def test_hello_with_a_projection(self) -> None:
        """E16, C25: an accepted hello with a projection or a receipt ends the connection, and changes nothing."""
        projection = wire_of(FIRST)
        for answer in (
            control_pb2.EdgeHelloResponse(accepted=True, deployment_id=DEPLOYMENT, projection=projection),
            control_pb2.EdgeHelloResponse(accepted=True, deployment_id=DEPLOYMENT, receipt=receipt_of(projection)),
        ):
            self.control_plane.hello_answer = answer
            self.control_plane.lost_for = None
            self.dial()
            self.assertIsInstance(self.control_plane.lost_for, IopError)
            self.assertFalse(self.link.ready)
        self.assertEqual([route.model for route in self.link.projection().routes_of("ada")], ["m"])

    def test_other_deployment(self) -> None:
        """A Control Plane of another deployment is not this Edge's."""
        self.control_plane.hello_answer.deployment_id = "deployment-2"
        self.dial()
        self.assertIsNotNone(self.control_plane.lost_for)
        self.assertFalse(self.link.ready)

    def test_a_projection(self) -> None:
        """C24, C25, E16: a projection is not installed, and ends the connection; callers do not notice."""
        self.dial()
        self.control_plane.push(FIRST)
        self.pump()
        self.assertIsInstance(self.control_plane.lost_for, PeerDisconnected)
        self.assertEqual((self.control_plane.words, self.link.ready), ([], False))
        node = self.node()
        self.request(text_of(ADA))
        self.assertEqual(node.last_run().binding.principal, "ada")

    def test_questions(self) -> None:
        """C24, C25: its own side of the wire has no lease, page or word on a projection to ask for."""
        self.dial()
        assert isinstance(self.link, LegacyLink)
        peer = self.link._peer
        assert peer is not None
        questions: list[Message] = [
            control_pb2.AcquireLeaseRequest(),
            control_pb2.ProjectionPageRequest(),
            control_pb2.EdgeReadyRequest(),
        ]
        for question in questions:
            self.failureResultOf(peer.request(question, 1.0), UnexpectedMessage)

    def test_status_commands_and_events(self) -> None:
        """C24, S7, S12: status, commands and events work; what is of the credential plane is an unknown operation."""
        heard: list[Message] = []
        self.patch(self.control_plane, "notified", heard.append)
        self.dial()
        asked = self.control_plane.peer.request(control_pb2.EdgeStatusRequest(), 1.0)
        self.pump()
        status = self.successResultOf(asked)
        assert isinstance(status, control_pb2.EdgeStatusResponse)
        self.assertEqual((status.edge_id, status.generation, status.nodes[0].node_id), (EDGE, 0, "node-1"))
        answers = {}
        for operation in ("leases.flush", "projection.resync", "edge.drain"):
            command = control_pb2.EdgeCommandRequest(command_id=operation, operation=operation)
            asked = self.control_plane.peer.request(command, 1.0)
            self.pump()
            answer = self.successResultOf(asked)
            assert isinstance(answer, control_pb2.EdgeCommandResponse)
            answers[operation] = answer.code if not answer.accepted else "accepted"
        self.assertEqual(
            answers,
            {
                "leases.flush": "unknown_operation",
                "projection.resync": "unknown_operation",
                "edge.drain": "accepted",
            },
        )
        self.assertIn(control_pb2.EdgeNodeEvent, {type(message) for message in heard})
