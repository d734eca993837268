"""``iop edge list``, ``iop edge status`` and ``iop node list`` from their side, against a small server on a socket."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from twisted.internet import reactor as running
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXServerEndpoint
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.interfaces import IAddress, ITransport
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from iop.cli import operator
from iop.cli.operator import CALL_SECONDS, Operator, OperatorUnreachable
from iop.errors import ApiRefused, BadConfig, IopError, NotFound
from iop.process.role import IReactor
from iop.units import SOCKET_PATH_LIMIT, fits_socket
from tests.cli.command import CommandCase

reactor = cast(IReactor, running)
E = TypeVar("E", bound=IopError)

SESSION = {
    "edge": "edge-1",
    "mode": "managed",
    "generation": 12,
    "acknowledged": 11,
    "ready": True,
    "connected_since": "2026-01-01T00:00:00.000Z",
}
CONFIG = {
    "provider": "p",
    "category": "api",
    "profile": "openai",
    "target": "openai",
    "models": 3,
    "capacity": 4,
    "long_context_capacity": 2,
}
PROVIDER = {
    "provider": "p",
    "category": "api",
    "status": "available",
    "health": "healthy",
    "capacity": 4,
    "in_flight": 1,
    "queued": 0,
    "long_context_capacity": 2,
    "long_in_flight": 1,
    "long_queued": 0,
}
NODE = {"node": "node-1", "connected": True, "config": {"providers": [CONFIG]}, "providers": [PROVIDER]}
GONE = {"code": "not_found", "detail": "this Edge is not connected here", "hint": "iop edge list tells which are"}


def status_of(edge: str) -> dict[str, Any]:
    """What an Edge tells of itself."""
    return {"edge": edge, "generation": 12, "draining": False, "event_sequence": 7, "nodes": [NODE]}


def answer(status: int, document: object) -> bytes:
    """A whole HTTP answer."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(content)) + content


class _Server(Protocol):
    """Answers one request with what ``answers`` says for its path; with nothing, it is silent."""

    def __init__(self, answers: Callable[[str], bytes]) -> None:
        self._answers = answers
        self._head = b""
        self.gone: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self._head += data
        if self._head.endswith(b"\r\n\r\n"):
            method, path, _ = self._head.decode().split(" ", 2)
            assert method == "GET"
            cast(ITransport, self.transport).write(self._answers(path))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.gone.callback(None)


class _Servers(Factory):
    def __init__(self, answers: Callable[[str], bytes]) -> None:
        self._answers = answers
        self.built: list[_Server] = []

    def buildProtocol(self, addr: IAddress | None) -> _Server:
        self.built.append(_Server(self._answers))
        return self.built[-1]


class OperatorTests(TestCase):
    timeout = 30

    def setUp(self) -> None:
        # the folder of a test is deeper than the path of a socket may be long
        folder = tempfile.mkdtemp(prefix="iop-")
        self.addCleanup(shutil.rmtree, folder)
        self.path = Path(folder, "operator.sock")
        self.operator = Operator(reactor, self.path)

    async def serve(self, answers: Callable[[str], bytes] | bytes) -> None:
        """Listen at the path, and leave with the test when every caller has."""
        servers = _Servers((lambda path: answers) if isinstance(answers, bytes) else answers)
        port = await UNIXServerEndpoint(reactor, str(self.path)).listen(servers)

        async def leave() -> None:
            await port.stopListening()
            for server in servers.built:
                await server.gone

        self.addCleanup(lambda: Deferred.fromCoroutine(leave()))

    async def fails(self, call: Coroutine[Any, Any, object], kind: type[E]) -> E:
        """The error with which a call ends."""
        ended: Deferred[Any] = Deferred.fromCoroutine(call)
        return cast(E, await self.assertFailure(ended, kind))

    async def refused(self, answers: Callable[[str], bytes] | bytes) -> ApiRefused:
        """What a call is refused with."""
        await self.serve(answers)
        return await self.fails(self.operator.edges(), ApiRefused)

    async def test_edges(self) -> None:
        """Members that a newer Control Plane adds are kept for whoever reads the JSON."""
        newer = {"edges": [SESSION | {"region": "here"}]}
        await self.serve(lambda path: answer(200 if path == "/v1/edges" else 404, newer))
        self.assertEqual((await self.operator.edges()).model_dump(), newer)

    async def test_edge(self) -> None:
        await self.serve(lambda path: answer(200, status_of(path.removeprefix("/v1/edges/"))))
        told = await self.operator.edge("edge-7")
        self.assertEqual(told.model_dump(), status_of("edge-7"))

    async def test_edge_that_leaves_meanwhile(self) -> None:
        """It is no longer connected, and that is what a list of connected ones says."""
        answers = {
            "/v1/edges": answer(200, {"edges": [SESSION | {"edge": name} for name in ("a", "b", "c")]}),
            "/v1/edges/a": answer(200, status_of("a")),
            "/v1/edges/b": answer(404, GONE),
            "/v1/edges/c": answer(200, status_of("c")),
        }
        await self.serve(answers.__getitem__)
        told, failed = await self.operator.every_edge()
        self.assertEqual(([each.edge for each in told], failed), (["a", "c"], {}))

    async def test_refusal(self) -> None:
        """The code is the Control Plane's; its words command no terminal."""
        late = {"code": "timed_out", "detail": "edge-1 is late\x1b[31m\n", "hint": "try\u202eagain"}
        refused = await self.refused(answer(504, late))
        self.assertEqual((refused.status, refused.reason), (504, "timed_out"))
        self.assertEqual((refused.message, refused.hint), ("edge-1 is late?[31m?", "try?again"))

    async def test_edge_that_does_not_answer(self) -> None:
        """The others are told of, and it is named."""
        edges = {"edges": [SESSION | {"edge": name} for name in ("a", "b", "c")]}
        late = {"code": "timed_out", "detail": "it did not answer in time"}
        answers = {
            "/v1/edges": answer(200, edges),
            "/v1/edges/a": answer(200, status_of("a")),
            "/v1/edges/b": answer(504, late),
            "/v1/edges/c": answer(200, status_of("c")),
        }
        await self.serve(answers.__getitem__)
        told, failed = await self.operator.every_edge()
        self.assertEqual([each.edge for each in told], ["a", "c"])
        refused = failed.pop("b")
        self.assertEqual((refused.status, refused.reason, failed), (504, "timed_out", {}))
        self.assertEqual(refused.message, "Edge b: it did not answer in time")

    async def test_edge_that_is_not_connected(self) -> None:
        await self.serve(answer(404, GONE))
        error = await self.fails(self.operator.edge("edge-1"), NotFound)
        self.assertEqual((error.message, error.hint), (GONE["detail"], GONE["hint"]))

    async def test_name_that_is_none(self) -> None:
        """Nothing is asked: a name becomes part of a path, and only a name does."""
        for name in ("", "..", "a/b", "a?b", "a\r\nx: y", "A", "é", "a" * 64):
            await self.fails(self.operator.edge(name), NotFound)

    async def test_no_socket(self) -> None:
        error = await self.fails(self.operator.edges(), OperatorUnreachable)
        self.assertEqual(error.message, f"there is no socket at {self.path}")
        self.assertIn("[operator] socket", error.hint)

    async def test_nobody_listens(self) -> None:
        """A file that a killed process left, and one that is no socket."""
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(self.path))
        plain = self.path.with_name("plain")
        plain.touch()
        for path in (self.path, plain):
            error = await self.fails(Operator(reactor, path).edges(), OperatorUnreachable)
            self.assertEqual(error.message, f"nothing answers at {path}")
            self.assertIn("does the Control Plane run", error.hint)

    async def test_what_is_no_answer_of_a_control_plane(self) -> None:
        """Another protocol, no JSON, JSON of another shape or type, a number for text, a name that is none."""
        deep = b"[" * 100_000
        contents: list[object] = [b"", b"<html>", b"\xff", deep, [], None, {}, {"edges": {}}, {"edges": [7]}]
        contents += [
            {"edges": [SESSION | {key: value}]}
            for key, value in (("ready", 1), ("mode", "other"), ("edge", "a\x1b[31m"))
        ]
        contents += [{"edges": [SESSION | {key: value}]} for key, value in (("generation", "1"), ("generation", True))]
        answers = [answer(200, content) for content in contents]
        answers += [answer(403, content) for content in (b"no", {"error": "no"}, {"code": 7})]
        answers += [b"SSH-2.0-OpenSSH_9\r\n\r\n"]
        current = answers
        await self.serve(lambda path: current[0])
        while current:
            refused = await self.fails(self.operator.edges(), ApiRefused)
            self.assertEqual(refused.reason, "bad_answer", current[0][:80])
            self.assertIn("[operator] socket", refused.hint)
            del current[0]

    async def test_answer_that_is_too_long(self) -> None:
        """Whether its length was said or not, no more is taken, and the server is hung up on."""
        self.patch(operator, "ANSWER_LIMIT", 1000)
        refused = await self.refused(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001))
        self.assertEqual(refused.reason, "bad_answer")
        self.assertIn("longer than 1000 bytes", refused.message)


class Machine:
    """A machine on which a Control Plane answers at every path, each call with the next of ``answers``.

    An answer is a document, or a status and a document, or None for a call that nobody takes.
    """

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.sent: list[dict[str, Any]] = []

    def run(self, work: Callable[[IReactor], Coroutine[Any, Any, object]]) -> object:
        """Takes the place of :func:`iop.cli.reactor.run_in_reactor`."""
        memory = MemoryReactorClock()
        results: list[object] = []
        Deferred.fromCoroutine(work(cast(IReactor, memory))).addBoth(results.append)
        taken = 0
        while not results:
            if taken == len(memory.unixClients):
                # something is tried again after a while
                memory.advance(1)
                continue
            self._take(memory.unixClients[taken][1])
            taken += 1
        [result] = results
        if isinstance(result, Failure):
            result.raiseException()
        return result

    def _take(self, factory: Any) -> None:
        given = self._answers.pop(0)
        if given is None:
            factory.clientConnectionFailed(None, Failure(ConnectError(errno.ECONNREFUSED)))
            return
        status, document = given if isinstance(given, tuple) else (200, given)
        protocol, transport = factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        head, _, body = transport.value().partition(b"\r\n\r\n")
        self.asked.append(head.decode().split(" ")[1])
        if body:
            self.sent.append(json.loads(body))
        protocol.dataReceived(answer(status, document))
        protocol.connectionLost(Failure(ConnectionDone()))


class UnansweredTests(SynchronousTestCase):
    """Calls on a machine that is told what happens, and when."""

    def setUp(self) -> None:
        self.machine = MemoryReactorClock()
        self.call = Deferred.fromCoroutine(Operator(cast(IReactor, self.machine), Path("run/operator.sock")).edges())
        _, self.factory, _, _ = self.machine.unixClients[0]

    def test_user_who_may_not_open_it(self) -> None:
        """Told apart from a Control Plane that does not run: what to do is another thing."""
        self.factory.clientConnectionFailed(None, Failure(ConnectError(errno.EACCES)))
        error = cast(OperatorUnreachable, self.failureResultOf(self.call, OperatorUnreachable).value)
        self.assertIn("this user may not open run/operator.sock", error.message)
        self.assertIn("the socket's group", error.hint)

    def test_nobody_accepts(self) -> None:
        self.machine.advance(CALL_SECONDS)
        error = cast(OperatorUnreachable, self.failureResultOf(self.call, OperatorUnreachable).value)
        self.assertIn("did not answer within 15 s", error.message)

    def test_answer_that_trickles(self) -> None:
        """The deadline is for the whole of an answer, its head or its body; whoever misses it is hung up on."""
        protocol, transport = self.factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        protocol.dataReceived(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(int(CALL_SECONDS) - 1):
            self.machine.advance(1)
            protocol.dataReceived(b" ")
        self.assertNoResult(self.call)
        self.machine.advance(1)
        self.failureResultOf(self.call, OperatorUnreachable)
        self.assertTrue(transport.disconnecting)

    def test_path_that_no_socket_can_have(self) -> None:
        """The limit is on bytes, and holds before anything is opened."""
        longest = "/" + "ü" * 53
        self.assertEqual(len(os.fsencode(longest)), SOCKET_PATH_LIMIT)
        self.assertTrue(fits_socket(Path(longest)))
        self.assertFalse(fits_socket(Path(longest + "x")))
        error = self.assertRaises(BadConfig, Operator, self.machine, Path(longest + "x"))
        self.assertIn("107 bytes", error.message)


class CommandTests(CommandCase):
    def on(self, *answers: object) -> Machine:
        """A machine on which commands are run from now on."""
        machine = Machine(*answers)
        self.patch(operator, "run_in_reactor", machine.run)
        return machine

    def told(self, *arguments: str) -> str:
        """What a command prints that succeeds."""
        done = self.iop(*arguments, "--socket", "operator.sock")
        self.assertEqual((done.code, done.err), (0, ""))
        return done.out

    def test_edges(self) -> None:
        self.on({"edges": [SESSION]})
        self.assertEqual(
            self.told("edge", "list").splitlines(),
            [
                "EDGE    MODE     GENERATION  ACKNOWLEDGED  READY  CONNECTED SINCE",
                "edge-1  managed  12          11            yes    2026-01-01T00:00:00.000Z",
            ],
        )

    def test_no_edge(self) -> None:
        self.on({"edges": []}, {"edges": []})
        self.assertIn("No Edge is connected", self.told("edge", "list"))
        self.assertIn("No connected Edge has a Node", self.told("node", "list"))

    def test_edge(self) -> None:
        """A Node without providers has a line too."""
        empty = NODE | {"node": "node-2", "connected": False, "providers": []}
        machine = self.on(status_of("edge-1") | {"nodes": [NODE, empty]})
        self.assertEqual(
            self.told("edge", "status", "edge-1").splitlines(),
            [
                "edge          edge-1",
                "generation    12",
                "draining      no",
                "newest event  7",
                "",
                "EDGE    NODE    CONNECTED  PROVIDER  CATEGORY  STATUS     HEALTH   CAPACITY  IN FLIGHT  QUEUED"
                "  LONG CAPACITY  LONG IN FLIGHT  LONG QUEUED",
                "edge-1  node-1  yes        p         api       available  healthy  4         1          0     "
                "  2              1               0",
                "edge-1  node-2  no",
            ],
        )
        self.assertEqual(machine.asked, ["/v1/edges/edge-1"])

    def test_nodes(self) -> None:
        """Of all Edges, or of one."""
        both = [status_of("edge-1"), status_of("edge-2")]
        machine = self.on({"edges": [SESSION, SESSION | {"edge": "edge-2"}]}, *both)
        lines = self.told("node", "list").splitlines()
        self.assertEqual([line.split()[:2] for line in lines[1:]], [["edge-1", "node-1"], ["edge-2", "node-1"]])
        self.assertEqual(machine.asked, ["/v1/edges", "/v1/edges/edge-1", "/v1/edges/edge-2"])
        machine = self.on(both[1])
        self.assertIn("edge-2", self.told("node", "list", "--edge", "edge-2"))
        self.assertEqual(machine.asked, ["/v1/edges/edge-2"])

    def test_an_edge_that_does_not_answer(self) -> None:
        """The others are shown, it is named on stderr and, to programs, under ``failed``, and the exit code is 1."""
        edges = {"edges": [SESSION, SESSION | {"edge": "edge-2"}]}
        late = (504, {"code": "request_timed_out", "detail": "it is late"})
        self.on(edges, late, status_of("edge-2"))
        done = self.iop("node", "list", "--socket", "operator.sock")
        self.assertEqual((done.code, done.err), (1, "Error: Edge edge-1: it is late\n"))
        self.assertIn("edge-2  node-1", done.out)
        self.on(edges, late, status_of("edge-2"))
        done = self.iop("node", "list", "--socket", "operator.sock", "--json")
        self.assertEqual(done.code, 1)
        failed = {"edge-1": {"code": "request_timed_out", "message": "Edge edge-1: it is late"}}
        self.assertEqual(json.loads(done.out), {"edges": [status_of("edge-2")], "failed": failed})

    def test_to_programs_all_of_it(self) -> None:
        """One line, with what no column shows."""
        for document, shown, arguments in (
            ({"edges": [SESSION]}, {"edges": [SESSION]}, ("edge", "list")),
            (status_of("edge-1"), status_of("edge-1"), ("edge", "status", "edge-1")),
            (status_of("edge-1"), {"edges": [status_of("edge-1")], "failed": {}}, ("node", "list", "--edge", "edge-1")),
        ):
            self.on(document)
            [line] = self.told(*arguments, "--json").splitlines()
            self.assertEqual(json.loads(line), shown)

    def test_what_is_told_commands_no_terminal(self) -> None:
        provider = PROVIDER | {"status": "\x1b]0;mine\x07", "edge": "\x1b[31m"}
        self.on(status_of("edge-1") | {"nodes": [NODE | {"providers": [provider]}]})
        told = self.told("edge", "status", "edge-1")
        self.assertNotIn("\x1b", told)
        self.assertIn("?]0;mine?", told)

    def test_socket_is_named_by_option_or_environment(self) -> None:
        self.patch(os, "environ", {k: v for k, v in os.environ.items() if k != "IOP_OPERATOR_SOCKET"})
        done = self.iop("edge", "list")
        self.assertEqual(done.code, 2)
        self.assertIn("IOP_OPERATOR_SOCKET", done.err)
        self.on({"edges": []})
        self.patch(os, "environ", os.environ | {"IOP_OPERATOR_SOCKET": "operator.sock"})
        self.assertEqual(self.iop("edge", "list").code, 0)

    def test_denying_is_as_it_was(self) -> None:
        """``deny`` and ``allow`` stand beside what lists, and take a configuration instead of a socket."""
        for kind in ("edge", "node"):
            done = self.iop(kind, "deny", "--help")
            self.assertEqual(done.code, 0)
            self.assertIn("--config", done.out)
            self.assertNotIn("--socket", done.out)
