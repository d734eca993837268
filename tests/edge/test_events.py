"""What an Edge tells without being asked."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop import errors
from iop.control_plane import events as control_plane
from iop.core.lifecycle import NODE_ENDS, OTHER_END, end_code
from iop.edge.events import BURST, PER_SECOND
from iop.errors import Draining, IopError, PeerDisconnected, PeerSilent
from iop.testing.peers import PeerPair
from iop.wire import control_pb2
from tests.edge.rig import FakeNode, Rig, node_table

READY = control_pb2.LIFECYCLE_EVENT_NODE_READY
GONE = control_pb2.LIFECYCLE_EVENT_NODE_DISCONNECTED
EDGE_READY = control_pb2.LIFECYCLE_EVENT_EDGE_READY


class EventCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.rig = Rig(Path(self.mktemp()), [node_table("node-1"), node_table("node-2")])

    def told(self) -> list[tuple[int, int, str, str]]:
        """What the Control Plane has heard: number, event, Node, code."""
        self.rig.pump()
        return [(event.sequence, event.event, event.node_id, event.code) for event in self.rig.control_plane.events]

    def connected(self, name: str) -> PeerPair:
        """A Node that is ready."""
        return self.rig.connect(FakeNode(self.rig.clock, name))


class NodeTests(EventCase):
    """S12, P15, C34: what is told of Nodes."""

    def test_life_of_a_node(self) -> None:
        """S12, C6: ready and disconnected, in that order, with rising numbers and the time of this Edge."""
        self.rig.dial()
        pair = self.connected("node-1")
        pair.cut()
        self.connected("node-1")
        self.assertEqual(
            self.told(),
            [
                (1, EDGE_READY, "", ""),
                (2, READY, "node-1", ""),
                (3, GONE, "node-1", "peer_disconnected"),
                (4, READY, "node-1", ""),
            ],
        )
        self.assertEqual({event.at_ms for event in self.rig.control_plane.events}, {self.rig.clock.wall_ms()})

    def test_after_it_is_true(self) -> None:
        """S12, P15: ready once the pool has it, disconnected once registry and pool are rid of it."""
        self.rig.dial()
        seen: list[tuple[int, bool, bool]] = []
        tell = self.rig.notes.tell

        def told(message: object) -> None:
            assert isinstance(message, control_pb2.EdgeNodeEvent)
            pool = self.rig.pool.offers("node-1", "openai-main")
            seen.append((message.event, pool, self.rig.nodes.ready("node-1") is not None))
            tell(message)

        self.patch(self.rig.notes, "tell", told)
        self.connected("node-1").cut()
        self.assertEqual(seen, [(READY, True, True), (GONE, False, False)])

    def test_duplicate_and_stale(self) -> None:
        """P15: a duplicate that is refused tells nothing, nor does its end, nor the second end of an older one."""
        self.rig.dial()
        first = self.connected("node-1")
        second = FakeNode(self.rig.clock, "node-1")
        duplicate = self.rig.connect(second)
        self.assertEqual(second.refusal, "already_connected")
        duplicate.cut()
        self.assertEqual(self.told()[1:], [(2, READY, "node-1", "")])
        first.cut()
        self.connected("node-1")
        first.cut()
        self.assertEqual(self.told()[2:], [(3, GONE, "node-1", "peer_disconnected"), (4, READY, "node-1", "")])

    def test_never_ready(self) -> None:
        """S12: a Node that was not ready yet has not disconnected: it was never told of."""
        self.rig.dial()
        node = FakeNode(self.rig.clock, "node-1")
        node.registers = False
        pair = self.rig.connect(node)
        node.ask(node.hello())
        self.rig.pump()
        pair.cut()
        stranger = FakeNode(self.rig.clock, "node-9")
        self.rig.connect(stranger).cut()
        self.assertEqual(stranger.refusal, "not_configured")
        self.assertEqual(len(self.told()), 1)

    def test_crowds(self) -> None:
        """S12: more of Nodes than a Control Plane takes is numbered and not told, and it hears the rest."""
        self.rig.dial()
        tell = self.rig.events
        for crowd in (BURST, PER_SECOND):
            self.rig.control_plane.events.clear()
            for _ in range(crowd + 10):
                tell.node_draining("node-1")
                self.rig.pump()
            last = tell.sequence
            # one less for what adding up fractions costs
            self.assertIn(len(self.told()), (crowd, crowd - 1))
            tell.edge_draining()
            self.rig.clock.advance(1.0)
            tell.node_resumed("node-1")
            self.assertEqual([number for number, *_ in self.told()][-2:], [last + 1, last + 2])
        self.assertEqual((2 * BURST, 2 * PER_SECOND), (control_plane.BURST, control_plane.PER_SECOND))

    def test_order_of_each_node(self) -> None:
        """S12: however Nodes come and go together, those of each alternate."""
        self.rig.dial()
        for _ in range(3):
            pairs = [self.connected(name) for name in ("node-1", "node-2")]
            for pair in reversed(pairs):
                pair.cut()
        told = self.told()[1:]
        self.assertEqual([number for number, *_ in told], list(range(2, 14)))
        for name in ("node-1", "node-2"):
            self.assertEqual([event for _, event, node, _ in told if node == name], [READY, GONE] * 3)


class HearingTests(EventCase):
    """S12, C34: who hears of it."""

    def test_nobody_hears(self) -> None:
        """S12: numbers rise also while nobody hears them; nothing is kept for later, and the status shows the gap."""
        self.connected("node-1").cut()
        self.assertEqual(self.rig.events.sequence, 2)
        self.rig.dial()
        self.assertEqual(self.told(), [(3, EDGE_READY, "", "")])
        self.assertEqual(self.rig.link.status.page("", 0).event_sequence, 3)

    def test_before_the_hello_is_accepted(self) -> None:
        """C34: a connection whose hello was not accepted hears nothing, and is not hurt by what happens meanwhile."""
        self.rig.control_plane.hello_answer.accepted = False
        self.rig.dial()
        self.connected("node-1")
        self.assertEqual((self.told(), self.rig.events.sequence), ([], 1))
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])

    def test_while_the_projection_is_on_its_way(self) -> None:
        """S12: the hello is enough: what happens before this Edge is ready is heard."""
        projection = self.rig.control_plane.hello_answer.projection
        projection.ClearField("routes")
        projection.next_bucket = 256
        self.rig.dial()
        self.connected("node-1")
        self.assertEqual(self.told(), [(1, READY, "node-1", "")])

    def test_dead_connection(self) -> None:
        """C34: what cannot be delivered changes nothing of what it tells, and the next connection hears the next."""
        pair = self.rig.dial()
        pair.initiator_transport.held = True
        node = self.connected("node-1")
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])
        pair.cut()
        node.cut()
        self.assertEqual((self.rig.nodes.ready_names, self.rig.events.sequence), ([], 3))
        self.assertEqual(self.told(), [(1, EDGE_READY, "", "")])
        self.rig.dial()
        self.assertEqual(self.told()[1:], [(4, EDGE_READY, "", "")])

    def test_closed_under_it(self) -> None:
        """C34: nor does a connection that is closed and has not been seen to end."""
        self.rig.dial()
        assert self.rig.control_pair is not None
        self.rig.control_pair.initiator.close(PeerSilent("nothing was heard"))
        self.connected("node-1")
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])
        self.assertEqual(self.rig.events.sequence, 2)

    def test_older_connection(self) -> None:
        """C34: the end of an older connection does not silence the newer one."""
        older = self.rig.dial()
        self.rig.dial()
        older.cut()
        self.connected("node-1")
        self.assertEqual(self.told()[-1], (3, READY, "node-1", ""))


class ReasonTests(SynchronousTestCase):
    """S12: why a Node's connection ended."""

    def test_closed_list(self) -> None:
        """S12, C46: whatever ended it, the code is of the list, and nothing of the error's words is in it."""
        self.assertEqual(end_code(PeerDisconnected("10.1.2.3 is gone")), "peer_disconnected")
        self.assertEqual(end_code(Draining("bye")), "draining")
        self.assertEqual(end_code(errors.NodeDismissed("bye")), "disconnected")
        self.assertEqual(end_code(errors.StoreBusy("10.1.2.3")), OTHER_END)

        def below(kind: type[IopError]) -> list[type[IopError]]:
            return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

        for kind in below(IopError):
            error = kind.__new__(kind)
            self.assertIn(end_code(error), NODE_ENDS)
        for kind in below(errors.ProtocolViolation):
            if kind.__module__ == errors.__name__:
                self.assertIn(kind.code, [*NODE_ENDS, "event_flood"])
