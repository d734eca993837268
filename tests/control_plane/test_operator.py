"""The operator socket's calls over their real resource, without a socket."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.control_plane import operator, status
from iop.control_plane.slices import SLICE_SECONDS
from iop.control_plane.status import EdgeStatus, NodeConfig, NodeStatus, ProviderConfig, ProviderStatus
from iop.core.commands import REFUSALS
from iop.errors import TooManyInFlight
from iop.wire import control_pb2
from tests.control_plane.test_commands import CommandCase, accepted, refused
from tests.control_plane.test_events import lifecycle
from tests.control_plane.world import result_of
from tests.edge.test_turns import EventLoop

URL = "http://localhost"
COMMANDS = "/v1/edges/edge1/commands"
DRAIN = {
    "command_id": "c-1",
    "operation": "node.drain",
    "selector": "node=told-node",
    "metadata": {"deadline_seconds": "60"},
}


class OperatorCase(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.treq: Any = StubTreq(self.world.plane.operator.resource())

    def call(self, method: str, path: str, body: object = b"", **headers: str) -> Deferred[Any]:
        """Begin a call."""
        sent = {"Content-Type": "application/json"} | headers
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        called: Deferred[Any] = self.treq.request(method, URL + path, headers=sent, data=content)
        self.world.pump()
        self.treq.flush()
        return called

    def read(self, called: Deferred[Any]) -> tuple[int, Any]:
        """Status and document of a call that has been answered."""
        self.treq.flush()
        response = result_of(called)
        return response.code, json.loads(result_of(self.treq.content(response)))

    def refusal(self, called: Deferred[Any]) -> tuple[int, str]:
        """Status and code of a call that has been refused."""
        status, document = self.read(called)
        self.assertEqual(document["status"], status)
        return status, document["code"]


class StatusDocumentTests(SynchronousTestCase):
    def test_others_have_their_turn(self) -> None:
        """S5: a status of many Nodes is written in slices, and is what it would be at once."""

        class Busy(EventLoop):
            """Every look at the clock comes a millisecond later."""

            looks = 0

            def boot(self) -> float:
                self.looks += 1
                return self.looks / 1000

        loop = Busy()
        provider = ProviderStatus("p", "api", "available", "healthy", 4, 1, 0, 2, 0, 0)
        config = NodeConfig((ProviderConfig("p", "api", "openai", "lab", 1, 4, 2),))
        for count in (0, 1, 500):
            nodes = tuple(NodeStatus(f"n{number}", True, config, (provider,)) for number in range(count))
            told = EdgeStatus("edge1", 7, draining=False, event_sequence=3, nodes=nodes)
            written = Deferred.fromCoroutine(operator.status_document(told, loop))
            turns = 0
            while not written.called:
                looks, turns = loop.looks, turns + 1
                loop.turn()
                self.assertLessEqual(loop.looks - looks, SLICE_SECONDS * 1000 + 2)
            self.assertEqual(self.successResultOf(written), json.dumps(asdict(told)).encode())
        self.assertGreater(turns, 50)


class CommandTests(OperatorCase):
    def test_sent_and_answered(self) -> None:
        """S6, S13: how it stands, whole."""
        called = self.call("POST", COMMANDS, DRAIN)
        self.answer(accepted())
        code, document = self.read(called)
        at = "2026-01-01T00:00:00.000Z"
        told = {"command_id": "c-1", "operation": "node.drain", "phase": "running", "done": 1, "total": 4}
        self.assertEqual((code, document["edge"]), (200, "edge1"))
        self.assertEqual(document["command"], told | {"code": "", "message": "", "at": at})

    def test_an_id_is_minted(self) -> None:
        """S6: a command without an id has one of its own each time, and neither selector nor metadata."""
        for _ in range(2):
            self.call("POST", COMMANDS, {"operation": "edge.resume"})
        first, second = self.commands()
        self.assertNotEqual(first.command_id, second.command_id)
        self.assertEqual((first.target_selector, list(first.metadata)), ("", []))

    def test_refused_by_the_edge(self) -> None:
        """S13: a problem document with the Edge's code and this side's words."""
        for code, words in REFUSALS.items():
            called = self.call("POST", COMMANDS, DRAIN)
            self.answer(refused(code))
            status, document = self.read(called)
            self.assertEqual((status, document["code"], document["detail"]), (409, code, words))
            self.assertNotIn("10.0.0.1", repr(document))

    def test_bodies_that_are_none(self) -> None:
        """P37: nothing of what is not exactly a command reaches an Edge."""
        bad: list[tuple[object, str]] = [(body, "bad_json") for body in (b"", b"{", b"[]", b'{"a":1,"a":1}', b"\xff")]
        odd: list[dict[str, object]] = [{"edge": "x"}, {"operation": 1}, {"selector": None}]
        values: tuple[object, ...] = ([], None, {"a": 1}, {"a": {}}, "x")
        odd += [{"metadata": value} for value in values]
        bad += [(DRAIN | each, "bad_command") for each in odd]
        bad += [({"selector": ""}, "bad_command"), ({}, "bad_command")]
        bad += [(DRAIN | {"command_id": text}, "malformed_input") for text in ("", "a b", "x" * 65)]
        for body, code in bad:
            with self.subTest(body=body):
                self.assertEqual(self.refusal(self.call("POST", COMMANDS, body)), (400, code))
        called = self.treq.request("POST", URL + COMMANDS, headers={"Content-Type": "text/plain"}, data=b"{}")
        self.assertEqual(self.refusal(called), (415, "json_only"))
        self.assertEqual(self.commands(), [])

    def test_bodies_have_a_limit(self) -> None:
        """P32: 16 KiB for a command, nothing for any other call."""
        self.assertEqual(operator.body_limit(b"POST", b"/v1/edges/e/commands"), 16 * 1024)
        for method, path in ((b"GET", b"/v1/edges/e/commands"), (b"POST", b"/v1/edges"), (b"POST", b"/v1/events")):
            self.assertEqual(operator.body_limit(method, path), 0)

    def test_an_edge_that_is_not_there(self) -> None:
        """S6: not found, and nothing in the audit."""
        self.assertEqual(self.refusal(self.call("POST", "/v1/edges/nobody/commands", DRAIN)), (404, "not_found"))
        actions = [row.action for row in result_of(self.world.store.audit.tail(9))]
        self.assertNotIn("edge.command", actions)

    def test_no_answer(self) -> None:
        """S6: 504, with what to do."""
        called = self.call("POST", COMMANDS, DRAIN)
        self.world.pass_time(5.2)
        status, document = self.read(called)
        self.assertEqual((status, document["code"]), (504, "request_timed_out"))
        self.assertIn("same id", document["hint"])

    def test_more_in_flight_than_a_connection_has(self) -> None:
        """W6: try again later, which is not a fault of the Control Plane."""

        def full(*_: object) -> None:
            raise TooManyInFlight("as many requests wait as may")

        self.patch(self.world.plane.edges.link("edge1"), "ask", full)
        self.assertEqual(self.refusal(self.call("POST", COMMANDS, DRAIN)), (503, "too_many_in_flight"))


class EventTests(OperatorCase):
    def told(self, query: str = "") -> Any:
        """What is answered at once."""
        code, document = self.read(self.call("GET", f"/v1/events{query}"))
        self.assertEqual(code, 200)
        return document

    def tell(self, *events: control_pb2.EdgeNodeEvent) -> None:
        """Have the Edge tell these."""
        peer = self.connection.edge.peer
        assert peer is not None
        for event in events:
            peer.notify(event)
        self.world.pump()

    def test_events(self) -> None:
        """S13: those after a number, of one Edge if one is named, and the number to go on with."""
        self.world.enrolled("edge2")
        self.tell(lifecycle(7, "node_disconnected", code="peer_silent"))
        document = self.told()
        self.assertEqual((document["newest"], document["lost"]), (3, False))
        self.assertEqual([event["edge"] for event in document["events"]], ["edge1", "edge2", "edge1"])
        told = {"number": 3, "edge": "edge1", "event": "node.disconnected", "at": "2026-01-01T00:00:00.000Z"}
        told |= {"sequence": 7, "node": "node1", "code": "peer_silent", "message": "nothing was heard from it"}
        self.assertEqual(document["events"][-1], told | {"command": None})
        self.assertEqual(self.told("?after=2&edge=edge1")["events"], document["events"][-1:])
        self.assertEqual(self.told("?edge=edge2")["events"], document["events"][1:2])
        self.assertEqual(self.told()["stream"], document["stream"])

    def test_a_long_poll(self) -> None:
        """S13: answered with the next event, or with nothing when its time is over."""
        called = self.call("GET", "/v1/events?after=1&wait=10")
        self.assertNoResult(called)
        self.tell(lifecycle(1))
        self.assertEqual([event["number"] for event in self.read(called)[1]["events"]], [2])
        called = self.call("GET", "/v1/events?after=2&wait=10")
        self.world.pass_time(10.2)
        self.assertEqual(self.read(called)[1]["events"], [])

    def test_questions_that_are_none(self) -> None:
        """P37: exactly these arguments, each once, within their limits."""
        for query in ("after=x", "after=-1", "after=01", "after=1&after=2", "wait=11", "wait=1.5", "edge=A", "edge="):
            self.assertEqual(self.refusal(self.call("GET", f"/v1/events?{query}")), (400, "bad_arguments"), query)
        for query in ("since=1", "after=1;wait=1", "after=%ff", f"after={'9' * 17}"):
            self.assertEqual(self.refusal(self.call("GET", f"/v1/events?{query}")), (400, "bad_arguments"), query)


class StatusTests(OperatorCase):
    def test_who_asks_meanwhile_shares_the_answer(self) -> None:
        """S1: one question to the Edge, one answer for all; one who leaves takes it from nobody."""
        calls = [self.call("GET", "/v1/edges/edge1") for _ in range(3)]
        asked = [each for each in self.connection.edge.received if isinstance(each, control_pb2.EdgeStatusRequest)]
        self.assertEqual(len(asked), 1)
        calls.pop().addErrback(lambda _: None).cancel()
        answer = control_pb2.EdgeStatusResponse(edge_id="edge1", generation=7, draining=True, event_sequence=5)
        self.connection.edge.held.pop().callback(answer)
        self.world.pump()
        told = {"edge": "edge1", "generation": 7, "draining": True, "event_sequence": 5, "nodes": []}
        for call in calls:
            self.assertEqual(self.read(call), (200, told))

    def test_asked_too_often(self) -> None:
        """S1: an Edge is asked a few times a second, whoever asks."""
        for _ in range(status.ASKED_BURST):
            called = self.call("GET", "/v1/edges/edge1")
            self.connection.edge.held.pop().callback(control_pb2.EdgeStatusResponse(edge_id="edge1"))
            self.world.pump()
            self.assertEqual(self.read(called)[0], 200)
        self.assertEqual(self.refusal(self.call("GET", "/v1/edges/edge1")), (429, "asked_too_often"))
        self.world.clock.advance(1 / status.ASKED_PER_SECOND)
        self.call("GET", "/v1/edges/edge1")
        self.assertEqual(len(self.connection.edge.held), 1)
