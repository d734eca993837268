"""An Edge in legacy mode as the Control Plane sees it: it is there, and has nothing of the credential plane."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, succeed

from iop.control_plane.status import Statuses
from iop.edge.config import load
from iop.edge.parts import Parts
from iop.errors import HelloRefused, NotFound, PeerDisconnected
from iop.net.peer import PeerFactory
from iop.process.metrics import new_registry
from iop.testing.peers import PeerPair, memory_identity
from iop.testing.pki import TRUST_DOMAIN
from iop.units import Identity, Role
from iop.wire import control_pb2
from iop.wire.dialect import CONTROL
from tests.control_plane.world import CONTROL_PLANE, Connection, WorldCase, hello, result_of
from tests.edge.test_config import LEGACY


class TogetherTests(WorldCase):
    def test_both_sides(self) -> None:
        """C24, E16: the Edge's own side and the Control Plane's agree, and status passes."""
        path = Path(self.mktemp())
        path.write_text(LEGACY)
        world = self.world
        edge = Parts(load(path), world.clock, new_registry(), settled=lambda: None, reload=lambda: succeed(None))
        link = edge.link
        pair = PeerPair(
            PeerFactory(
                link.dialect, initiator=True, application=link.application, clock=world.clock, identify=memory_identity
            ),
            PeerFactory(
                CONTROL,
                initiator=False,
                application=world.plane.edges.application,
                clock=world.clock,
                identify=memory_identity,
            ),
            dialler=Identity(TRUST_DOMAIN, Role.EDGE, "edge-1"),
            listener=CONTROL_PLANE,
        )
        world.pairs.append(pair)
        world.pump()
        self.assertTrue(link.ready)
        asked = Statuses(world.plane.edges, world.clock).status("edge-1")
        world.pump()
        self.assertEqual([node.node for node in result_of(asked).nodes], ["node-1"])
        world.route(self.ann, self.slot.slot, "other")
        result_of(Deferred.fromCoroutine(world.plane.edges.publish(self.generation())))
        world.pass_time(1.0)
        self.assertTrue(link.ready)


class LegacyTests(WorldCase):
    def accepted(self) -> Connection:
        """A legacy Edge whose hello was accepted, without projection and receipt."""
        connection = self.world.connect("edge1")
        answer = result_of(connection.ask(hello("edge1", legacy=True)))
        self.assertEqual(
            answer, control_pb2.EdgeHelloResponse(accepted=True, deployment_id=self.world.config.deployment.id)
        )
        return connection

    def refusal(self, message: control_pb2.EdgeHelloRequest) -> str:
        refused = self.failureResultOf(self.world.connect("edge1").ask(message), HelloRefused)
        assert isinstance(refused.value, HelloRefused)
        return refused.value.reason

    def test_hello(self) -> None:
        """E16, C24: it is accepted without projection and receipt; no session is recorded, none is ready."""
        self.accepted()
        self.assertEqual(result_of(self.world.store.edge_sessions.since(0)), [])
        (session,) = self.world.plane.edges.sessions()
        self.assertEqual((session.edge, session.legacy, session.ready, session.sent), ("edge1", True, False, 0))

    def test_refused_hello(self) -> None:
        """E1, E3, E16: identity, version, denial and the one connection of an Edge are looked at as ever."""
        self.assertEqual(self.refusal(hello("edge2", legacy=True)), "identity_refused")
        wrong = hello("edge1", legacy=True)
        wrong.protocol_version += 1
        self.assertEqual(self.refusal(wrong), "unsupported_version")
        self.accepted()
        self.assertEqual(self.refusal(hello("edge1", legacy=True)), "already_connected")
        self.assertEqual(self.refusal(hello("edge1")), "already_connected")

    def test_denied(self) -> None:
        """P13, E16: a denied Edge is refused, and one that is denied later loses its connection."""
        connection = self.accepted()
        result_of(self.world.store.denials.deny("edge", "edge1", "host:test"))
        published = Deferred.fromCoroutine(self.world.plane.edges.publish(self.generation()))
        self.world.pass_time(0.1)
        result_of(published)
        assert connection.edge.lost_for is not None
        self.assertIsInstance(connection.edge.lost_for, PeerDisconnected)
        self.assertEqual(self.refusal(hello("edge1", legacy=True)), "edge_denied")

    def test_gone_before_it_was_accepted(self) -> None:
        """C6, E16: of a connection that ended while denials were read nobody hears that it is there."""
        read: Deferred[list[tuple[str, str]]] = Deferred()
        self.patch(self.world.store.denials, "all", lambda: read)
        connection = self.world.connect("edge1")
        asked = connection.ask(hello("edge1", legacy=True))
        connection.pair.cut()
        self.failureResultOf(asked, PeerDisconnected)
        read.callback([])
        heard = result_of(Deferred.fromCoroutine(self.world.plane.events.after(0, None, 0)))
        self.assertEqual((heard.events, self.world.plane.edges.sessions()), ((), []))

    def test_credential_plane(self) -> None:
        """C24, C25, E16: a lease, a page and a word on a projection are not installed; asking ends the connection."""
        outcome = control_pb2.ProjectionOutcome(
            result=control_pb2.PROJECTION_RESULT_APPLIED, generation=self.generation(), digest=bytes(32)
        )
        requests: list[Message] = [
            self.question(),
            control_pb2.ProjectionPageRequest(generation=self.generation(), bucket=0),
            control_pb2.EdgeReadyRequest(outcome=outcome),
        ]
        for request in requests:
            connection = self.accepted()
            self.failureResultOf(connection.ask(request), PeerDisconnected)
            self.assertIsInstance(connection.edge.lost_for, PeerDisconnected)
            self.assertEqual(self.world.plane.edges.names(), [])
        self.assertEqual(self.world.unsealed, 0)

    def test_projections(self) -> None:
        """C24, E16: what is published is not sent to it, and no mutation waits for it."""
        connection = self.accepted()
        self.world.route(self.ann, self.slot.slot, "other")
        result_of(Deferred.fromCoroutine(self.world.plane.edges.publish(self.generation())))
        self.world.pass_time(1.0)
        self.assertEqual((connection.edge.received, connection.edge.lost_for), ([], None))

    def test_status(self) -> None:
        """C24, S1: it tells its status as soon as its hello was accepted."""
        connection = self.world.connect("edge1")
        statuses = Statuses(self.world.plane.edges, self.world.clock)
        early = statuses.status("edge1")
        self.failureResultOf(early, NotFound)
        result_of(connection.ask(hello("edge1", legacy=True)))
        asked = statuses.status("edge1")
        self.world.pump()
        self.assertEqual(connection.edge.received, [control_pb2.EdgeStatusRequest()])
        connection.edge.held[0].callback(control_pb2.EdgeStatusResponse(edge_id="edge1"))
        self.world.pump()
        told = result_of(asked)
        self.assertEqual((told.edge, told.generation, told.nodes), ("edge1", 0, ()))
