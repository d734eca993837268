"""Commands from an operator to an Edge that is played by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from iop.control_plane import commands
from iop.control_plane.commands import Command, CommandState
from iop.core.commands import ENDS, REFUSALS
from iop.errors import ApiRefused, MalformedInput, NotFound, PeerDisconnected, RequestTimedOut, StoreUnavailable
from iop.store.memory import MemoryStore
from iop.store.schema import migrate
from iop.wire import control_pb2
from tests.configurations import DEPLOYMENT
from tests.control_plane.world import WorldCase, result_of

DRAIN = Command("c-1", "node.drain", "node=told-node", (("deadline_seconds", "60"),))
#: What no operator may be shown, whoever sends it.
HOSTILE = ("https://10.0.0.1:8443/v1?key=x", "Bearer x", "a\x1b[31m", "", "x" * 65, "\u202e", "a b")


def state(phase: str = "running", **fields: Any) -> control_pb2.EdgeCommandEvent:
    """How :data:`DRAIN` stands, with other ``fields``."""
    values: dict[str, Any] = {
        "command_id": DRAIN.command_id,
        "operation": DRAIN.operation,
        "phase": control_pb2.CommandPhase.Value(f"COMMAND_PHASE_{phase.upper()}"),
        "done": 1,
        "total": 4,
        "at_ms": 1_767_225_600_000,
    }
    return control_pb2.EdgeCommandEvent(**(values | fields))


def accepted(**fields: Any) -> control_pb2.EdgeCommandResponse:
    """The answer that accepts :data:`DRAIN`."""
    return control_pb2.EdgeCommandResponse(accepted=True, state=state(**fields))


def refused(code: str, **fields: Any) -> control_pb2.EdgeCommandResponse:
    """The answer that refuses a command, in the Edge's words."""
    return control_pb2.EdgeCommandResponse(accepted=False, code=code, message="at 10.0.0.1\x1b[31m", **fields)


DRAIN_FIELDS = (DRAIN.command_id, DRAIN.operation, DRAIN.selector)


class CommandCase(WorldCase):
    """One Edge, enrolled."""

    def setUp(self) -> None:
        super().setUp()
        self.connection, _ = self.world.enrolled()

    def send(self, command: Command = DRAIN, edge: str = "edge1") -> Deferred[CommandState]:
        """Send a command as far as the Edge."""
        sent = Deferred.fromCoroutine(self.world.plane.commands.send(edge, command))
        self.world.pump()
        return sent

    def answer(self, answer: control_pb2.EdgeCommandResponse) -> None:
        """Let the Edge answer what it was asked last."""
        self.connection.edge.held.pop().callback(answer)
        self.world.pump()

    def commands(self) -> list[control_pb2.EdgeCommandRequest]:
        """What reached the Edge."""
        received = self.connection.edge.received
        return [message for message in received if isinstance(message, control_pb2.EdgeCommandRequest)]


class SendTests(CommandCase):
    def test_it_reaches_its_edge_whole(self) -> None:
        """S6, C35: as the operator gave it; how it stands comes back, with the Edge's time."""
        sent = self.send()
        [told] = self.commands()
        self.assertEqual((told.command_id, told.operation, told.target_selector), DRAIN_FIELDS)
        self.assertEqual([(each.key, each.value) for each in told.metadata], [("deadline_seconds", "60")])
        self.answer(accepted())
        self.assertEqual(
            self.successResultOf(sent),
            CommandState("c-1", "node.drain", "running", 1, 4, "", "", "2026-01-01T00:00:00.000Z"),
        )

    def test_asked_again(self) -> None:
        """S6: the same id goes to the Edge again, which says how it stands, and each asking is in the audit."""
        for phase in ("accepted", "running", "succeeded"):
            sent = self.send()
            self.answer(accepted(phase=phase))
            self.assertEqual(self.successResultOf(sent).phase, phase)
        self.assertEqual(len(self.commands()), 3)
        rows = result_of(self.world.store.audit.tail(9))
        self.assertEqual([row.action for row in rows].count("edge.command"), 3)

    def test_the_audit_comes_first(self) -> None:
        """P26: who, what and which id, before the Edge has it; not what metadata say."""
        self.send()
        row = result_of(self.world.store.audit.tail(1))[0]
        self.assertEqual((row.actor, row.action, row.subject), ("operator", "edge.command", "edge1"))
        self.assertEqual(row.details, {"operation": "node.drain", "command_id": "c-1"})
        self.assertNotIn("60", repr(row.details))

    def test_without_audit_nothing_is_sent(self) -> None:
        """P26, P47: a store that cannot write the row refuses the command."""
        audit = cast(Any, self.world.plane.commands)._audit
        self.patch(type(audit), "append", lambda *_: fail(StoreUnavailable("the disk is full")))
        self.failureResultOf(self.send(), StoreUnavailable)
        self.assertEqual(self.commands(), [])

    def test_an_edge_that_goes_while_it_is_audited(self) -> None:
        """S6: it is told that the Edge is not there; nothing waits for its return."""
        written: Deferred[None] = Deferred()
        audit = cast(Any, self.world.plane.commands)._audit
        self.patch(type(audit), "append", lambda *_: written)
        sent = self.send()
        self.connection.pair.cut()
        written.callback(None)
        self.failureResultOf(sent, NotFound)

    def test_every_refusal_in_this_sides_words(self) -> None:
        """S7-S10, S13: the code is passed on, with what to do about it, and of the Edge's message nothing."""
        for code, words in REFUSALS.items():
            sent = self.send()
            self.answer(refused(code))
            error = cast(ApiRefused, self.failureResultOf(sent, ApiRefused).value)
            self.assertEqual((error.status, error.reason, error.message), (409, code, words))
            self.assertTrue(error.hint)
            self.assertNotIn("10.0.0.1", error.hint)
        self.assertIsNone(self.connection.edge.lost_for)

    def test_every_end_in_this_sides_words(self) -> None:
        """S10, S13: why a command failed or was cancelled."""
        for code, words in ENDS.items():
            for phase in ("failed", "cancelled"):
                sent = self.send()
                self.answer(accepted(phase=phase, code=code, message="https://10.0.0.1"))
                told = self.successResultOf(sent)
                self.assertEqual((told.phase, told.code, told.message), (phase, code, words))

    def test_answers_that_are_none(self) -> None:
        """S13, C46: no address, token, escape sequence or unknown word passes; the connection of such an Edge ends."""
        odd = state()
        odd.phase = 9  # type: ignore[assignment]
        answers = [refused(code) for code in (*HOSTILE, "other_code", "deadline")]
        answers += [refused("bad_selector", state=state()), control_pb2.EdgeCommandResponse(accepted=True)]
        answers += [control_pb2.EdgeCommandResponse(accepted=True, code="bad_selector", state=state())]
        answers += [accepted(command_id=text) for text in (*HOSTILE, "c-2")]
        answers += [accepted(operation=text) for text in (*HOSTILE, "node.resume")]
        answers += [accepted(phase="failed", code=text) for text in (*HOSTILE, "bad_selector")]
        answers += [accepted(phase="succeeded", code="deadline"), accepted(phase="unspecified")]
        answers += [
            control_pb2.EdgeCommandResponse(accepted=True, state=odd),
            accepted(done=5),
            accepted(at_ms=-1),
            accepted(at_ms=commands.LAST_MS + 1),
        ]
        for answer in answers:
            sent = self.send()
            self.answer(answer)
            error = self.failureResultOf(sent, PeerDisconnected).value
            self.assertNotIn("10.0.0.1", f"{error.message} {error.hint}")
            self.assertIsNotNone(self.connection.edge.lost_for, answer)
            self.connection, _ = self.world.enrolled()

    def test_no_answer(self) -> None:
        """S6: after five seconds it is not known whether it runs, and the same id finds out."""
        sent = self.send()
        self.world.pass_time(5.2)
        self.assertIn("same id", self.failureResultOf(sent, RequestTimedOut).value.hint)
        sent = self.send()
        self.connection.pair.cut()
        self.assertIn("same id", self.failureResultOf(sent, PeerDisconnected).value.hint)

    def test_who_is_not_there(self) -> None:
        """S6: neither an Edge that is not connected, nor one whose word on the projection is still to come."""
        self.failureResultOf(self.send(edge="nobody"), NotFound)
        self.world.greeted("edge2")
        self.failureResultOf(self.send(edge="edge2"), NotFound)

    def test_shapes(self) -> None:
        """S6, S9: what no Edge could take is refused here, at the limit and one past."""
        for good in (
            Command("A.b_9-" + "x" * 58, "a" * 64, "", ()),
            Command("c", "x", "s", tuple((str(key), "v" * 256) for key in range(16))),
        ):
            self.assertIs(commands.check_command(good), good)
        for bad in (
            *(Command(text, "edge.drain", "", ()) for text in HOSTILE),
            *(Command("c", text, "", ()) for text in (*HOSTILE, "Edge.drain")),
            Command("c", "edge.drain", "", tuple((str(key), "") for key in range(17))),
            *(Command("c", "edge.drain", "", ((key, "v"),)) for key in ("", "k" * 65, "a\n")),
            *(Command("c", "edge.drain", "", (("k", value),)) for value in ("v" * 257, "\x1b")),
            Command("c", "edge.drain", "", (("k", "1"), ("k", "2"))),
            Command("c", "edge.drain", "s" * 1025, ()),
        ):
            self.assertRaises(MalformedInput, commands.check_command, bad)


class KeptTests(CommandCase):
    def test_nothing_but_the_audit(self) -> None:
        """C47: of commands and events the store keeps the audit row, and no Node that was named or told."""
        store = self.world.store
        assert isinstance(store, MemoryStore)
        sent = self.send()
        self.answer(accepted())
        self.successResultOf(sent)
        peer = self.connection.edge.peer
        assert peer is not None
        peer.notify(state("succeeded"))
        event = control_pb2.LIFECYCLE_EVENT_NODE_READY
        peer.notify(control_pb2.EdgeNodeEvent(sequence=1, event=event, node_id="told-node"))
        self.world.pump()
        heard = result_of(Deferred.fromCoroutine(self.world.plane.events.after(0, None, 0)))
        self.assertEqual([each.told.event for each in heard.events][-2:], ["command", "node.ready"])
        kept = repr([vars(part) for part in vars(store).values() if hasattr(part, "__dict__")])
        self.assertIn("edge.command", kept)
        self.assertNotIn("told-node", kept)


class TablesTests(SynchronousTestCase):
    def test_no_table_is_of_nodes_or_what_they_do(self) -> None:
        """C47: the tables of a database are these, and no column of them names a Node, provider, run or command."""
        path = Path(self.mktemp())
        migrate(path, DEPLOYMENT)
        with sqlite3.connect(path) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            columns = {
                column
                for table in tables
                for (column,) in database.execute("SELECT name FROM pragma_table_info(?)", [table])
            }
        database.close()
        for word in ("node", "provider", "runtime", "run", "command", "event", "health", "in_flight", "queue"):
            self.assertEqual([name for name in (*tables, *columns) if word in name.split("_")], [], word)
        self.assertIn("audit", tables)
