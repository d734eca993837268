"""What Edges tell, as the Control Plane takes and keeps it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.control_plane import commands, events
from iop.control_plane.events import Event, Heard
from iop.core.allowance import Allowance
from iop.core.commands import ENDS
from iop.core.lifecycle import NODE_ENDS
from iop.errors import ApiRefused, EventFlood, FrameTooLarge, HelloRefused, UnexpectedMessage
from iop.units import is_name
from iop.wire import control_pb2
from tests.control_plane.test_commands import DRAIN, HOSTILE, CommandCase, accepted, state
from tests.control_plane.world import Connection, hello, result_of


def lifecycle(sequence: int, event: str = "node_ready", **fields: Any) -> control_pb2.EdgeNodeEvent:
    """An event of a Node, if it is one."""
    node = "node1" if event.startswith("node") else ""
    values: dict[str, Any] = {"node_id": node, "at_ms": 1_767_225_600_000} | fields
    return control_pb2.EdgeNodeEvent(sequence=sequence, event=f"LIFECYCLE_EVENT_{event.upper()}", **values)


class EventsCase(CommandCase):
    def tell(self, *messages: Message, connection: Connection | None = None) -> None:
        """Have an Edge tell this."""
        connection = connection or self.connection
        peer = connection.edge.peer
        assert peer is not None
        for message in messages:
            peer.notify(message)
            connection.pair.pump()
            # so many frames are taken in one turn
            self.world.clock.advance(0)

    def ask(self, after: int = 0, edge: str | None = None, wait: float = 0) -> Deferred[Heard]:
        """Ask for events."""
        return Deferred.fromCoroutine(self.world.plane.events.after(after, edge, wait))

    def heard(self, after: int = 0, edge: str | None = None) -> list[Event]:
        """What is kept."""
        return list(result_of(self.ask(after, edge)).events)


class ToldTests(EventsCase):
    def test_every_lifecycle_event(self) -> None:
        """S12, S13, C6, C34: in words, with the Edge's number and time, and a number of this process."""
        node_events = ("node_ready", "node_draining", "node_resumed")
        edge_events = ("edge_ready", "edge_draining", "edge_resumed", "edge_stopping")
        self.tell(*(lifecycle(at, event) for at, event in enumerate((*node_events, *edge_events), 5)))
        first, *told = self.heard()
        self.assertEqual((first.number, first.edge, first.told.event), (1, "edge1", "edge.connected"))
        self.assertEqual([event.number for event in told], list(range(2, 9)))
        self.assertEqual([event.told.sequence for event in told], list(range(5, 12)))
        self.assertEqual(
            [event.told.event for event in told], [name.replace("_", ".") for name in (*node_events, *edge_events)]
        )
        self.assertEqual([event.told.node for event in told], ["node1"] * 3 + [""] * 4)
        self.assertEqual({event.told.at for event in told}, {"2026-01-01T00:00:00.000Z"})

    def test_why_a_node_is_gone(self) -> None:
        """S13: every code of the list, in this side's words."""
        self.tell(*(lifecycle(at, "node_disconnected", code=code) for at, code in enumerate(NODE_ENDS, 1)))
        _, *told = self.heard()
        self.assertEqual({event.told.code: event.told.message for event in told}, NODE_ENDS)

    def test_commands(self) -> None:
        """S10, S13: how a command that was sent stands; of one that was not, not even its id is shown."""
        sent = self.send()
        self.answer(accepted(phase="accepted"))
        self.successResultOf(sent)
        self.tell(state("running", message="at 10.0.0.1"), state(command_id="sk-other"), state(operation="edge.drain"))
        self.tell(state("failed", code="deadline"))
        _, running, failed = [event.told for event in self.heard()]
        assert running.command is not None and failed.command is not None
        self.assertEqual((running.event, running.command.phase, running.command.done), ("command", "running", 1))
        self.assertEqual((failed.command.phase, failed.command.code), ("failed", "deadline"))
        self.assertIsNone(self.connection.edge.lost_for)

    def test_a_command_of_one_edge_is_no_other_ones(self) -> None:
        """S13: another Edge's word on it is not shown."""
        other, _ = self.world.enrolled("edge2")
        self.send()
        self.tell(state(), connection=other)
        self.assertEqual([event.told.event for event in self.heard(edge="edge2")], ["edge.connected"])

    def test_remembered_commands_have_a_bound(self) -> None:
        """S13: the one that was sent longest ago is forgotten first."""
        self.patch(events, "EXPECTED", 1)
        self.world.plane.events.expect("edge1", DRAIN)
        self.world.plane.events.expect("edge2", DRAIN)
        self.tell(state())
        self.assertEqual([event.told.event for event in self.heard()], ["edge.connected"])

    def test_what_is_no_event_ends_the_connection(self) -> None:
        """S13, C46: no address, token, escape sequence or unknown word reaches an operator through an event."""
        odd = lifecycle(1)
        odd.event = 99  # type: ignore[assignment]
        bad: list[Message] = [odd, lifecycle(0), lifecycle(1, "unspecified"), state("unspecified")]
        bad += [lifecycle(1, node_id=text) for text in HOSTILE]
        bad += [lifecycle(1, "edge_ready", node_id=text) for text in ("node1", *HOSTILE) if text]
        bad += [lifecycle(1, "node_disconnected", code=text) for text in (*HOSTILE, "other_code")]
        bad += [lifecycle(1, code="peer_silent"), lifecycle(1, at_ms=-1), lifecycle(1, at_ms=2**62)]
        bad += [state(command_id=text) for text in HOSTILE] + [state(operation=text) for text in HOSTILE]
        bad += [state("failed", code=text) for text in HOSTILE] + [state(done=5)]
        for message in bad:
            with self.subTest(message=str(message)):
                before = result_of(self.ask()).newest
                self.tell(message)
                self.assertIsNotNone(self.connection.edge.lost_for, message)
                told = [event.told.event for event in self.heard(before)]
                self.assertEqual(told, ["edge.disconnected"])
                self.connection, _ = self.world.enrolled()

    def test_order(self) -> None:
        """S12: numbers rise on a connection; some may be missed, none comes twice."""
        self.tell(lifecycle(3), lifecycle(7))
        self.assertEqual(len(self.heard()), 3)
        self.assertRaises(UnexpectedMessage, self.world.plane.events.told, "edge1", lifecycle(7), 7)
        self.tell(lifecycle(7))
        self.assertIsNotNone(self.connection.edge.lost_for)

    def test_huge(self) -> None:
        """S13: words that nobody will read are not taken without bound."""
        room = events.EVENT_LIMIT - state(message="x" * 128).ByteSize() + 128
        self.tell(state(message="x" * room))
        self.assertIsNone(self.connection.edge.lost_for)
        self.assertRaises(FrameTooLarge, self.world.plane.events.told, "edge1", state(message="x" * (room + 1)), 0)
        self.tell(state(message="x" * 500_000))
        self.assertIsNotNone(self.connection.edge.lost_for)

    def test_flood(self) -> None:
        """S13: an Edge has its burst and its rate, another connection gives it no more, and others have their own."""
        other, _ = self.world.enrolled("edge2")
        self.patch(self.world.plane.events, "_allowance", Allowance(2, 5))
        self.tell(*(lifecycle(at) for at in range(1, 6)))
        self.assertIsNone(self.connection.edge.lost_for)
        self.assertRaises(EventFlood, self.world.plane.events.told, "edge1", lifecycle(6), 5)
        self.tell(lifecycle(6))
        self.assertIsNotNone(self.connection.edge.lost_for)
        self.connection, _ = self.world.enrolled()
        self.tell(lifecycle(7))
        self.assertIsNotNone(self.connection.edge.lost_for)
        self.tell(lifecycle(1), connection=other)
        self.assertIsNone(other.edge.lost_for)
        self.world.clock.advance(0.5)
        self.connection, _ = self.world.enrolled()
        self.tell(lifecycle(8))
        self.assertIsNone(self.connection.edge.lost_for)


TEXTS = st.one_of(st.text(max_size=80), st.sampled_from(["node1", "c-1", "edge.drain", "deadline", "peer_silent"]))
INTEGERS = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))
TIMES = st.integers(-(2**63), 2**63 - 1)


class AnythingTests(SynchronousTestCase):
    """S13, C46: whatever an Edge fills its messages with, what comes of it is names, times and known words."""

    @given(event=INTEGERS, node=TEXTS, code=TEXTS, at_ms=TIMES)
    def test_lifecycle(self, event: int, node: str, code: str, at_ms: int) -> None:
        message = control_pb2.EdgeNodeEvent(sequence=1, node_id=node, code=code, at_ms=at_ms)
        message.event = event % 2**31  # type: ignore[assignment]
        try:
            told = events.read_lifecycle(message)
        except UnexpectedMessage:
            return
        self.assertTrue(told.node == "" or is_name(told.node))
        self.assertEqual(told.message, NODE_ENDS[told.code] if told.code else "")
        self.assertRegex(told.at, r"\A\d{4}-\d\d-\d\dT[\d:.]{12}Z\Z")

    @given(phase=INTEGERS, texts=st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), done=INTEGERS, total=INTEGERS, at_ms=TIMES)
    def test_commands(self, phase: int, texts: tuple[str, str, str, str], done: int, total: int, at_ms: int) -> None:
        command_id, operation, code, words = texts
        message = control_pb2.EdgeCommandEvent(
            command_id=command_id, operation=operation, code=code, message=words, done=done, total=total, at_ms=at_ms
        )
        message.phase = phase % 2**31  # type: ignore[assignment]
        try:
            told = commands.read_state(message)
        except UnexpectedMessage:
            return
        self.assertRegex(told.command_id, r"\A[A-Za-z0-9._-]{1,64}\Z")
        self.assertRegex(told.operation, r"\A[a-z0-9._]{1,64}\Z")
        self.assertEqual(told.message, ENDS[told.code] if told.code else "")
        self.assertLessEqual(told.done, told.total)


class SeenTests(EventsCase):
    def test_connections(self) -> None:
        """S12: an Edge comes and goes; one that is refused, or says nothing, does neither."""
        again = self.world.connect("edge1")
        self.failureResultOf(again.ask(hello("edge1")), HelloRefused)
        again.pair.cut()
        self.world.connect("edge2").pair.cut()
        self.connection.pair.cut()
        told = [(event.edge, event.told.event) for event in self.heard()]
        self.assertEqual(told, [("edge1", "edge.connected"), ("edge1", "edge.disconnected")])


class AskedTests(EventsCase):
    def test_the_last_are_kept(self) -> None:
        """S13: so many, whoever told them; who asks for what is gone is told that there was more."""
        self.tell(*(lifecycle(at) for at in range(1, events.KEPT + 1)))
        kept = result_of(self.ask(1))
        self.assertEqual((len(kept.events), kept.lost, kept.newest), (events.KEPT, False, events.KEPT + 1))
        self.assertTrue(result_of(self.ask(0)).lost)

    def test_a_number_of_another_process(self) -> None:
        """S13: one that is not reached yet is answered at once, and not waited for."""
        heard = result_of(self.ask(99, wait=10))
        self.assertEqual((heard.lost, heard.newest, heard.events), (True, 1, ()))

    def test_waiting(self) -> None:
        """S13: until there is one of the Edge asked for, or the time is over."""
        other, _ = self.world.enrolled("edge2")
        asked, late = self.ask(2, edge="edge1", wait=10), self.ask(2, edge="edge3", wait=2)
        self.tell(lifecycle(1), connection=other)
        self.assertNoResult(asked)
        self.world.clock.advance(2)
        nothing = result_of(late)
        self.assertEqual((nothing.newest, nothing.lost, nothing.events), (3, False, ()))
        self.assertNoResult(asked)
        self.tell(lifecycle(1))
        [event] = result_of(asked).events
        self.assertEqual((event.number, event.edge), (4, "edge1"))

    def test_waiting_among_others(self) -> None:
        """S13: who waits for one Edge has missed nothing of it when others tell more meanwhile than is kept."""
        other, _ = self.world.enrolled("edge2")
        asked = self.ask(2, edge="edge1", wait=10)
        self.tell(*(lifecycle(at) for at in range(1, events.KEPT + 2)), connection=other)
        self.tell(lifecycle(1))
        heard = result_of(asked)
        self.assertEqual(([event.edge for event in heard.events], heard.lost), (["edge1"], False))

    def test_as_many_wait_as_may(self) -> None:
        """S13: one more is refused, until another gives up or is answered."""
        waiting = [self.ask(1, wait=10) for _ in range(events.WAITING)]
        self.failureResultOf(self.ask(1, wait=10), ApiRefused)
        waiting.pop().addErrback(lambda _: None).cancel()
        waiting.append(self.ask(1, wait=10))
        self.tell(lifecycle(1))
        for asked in waiting:
            self.assertEqual(len(result_of(asked).events), 1)
