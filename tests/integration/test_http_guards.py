"""One contract for every HTTP listener of a running deployment, over real sockets.

Each listener gets what an attacker sends to have two readers disagree, or to have one of them keep more than it should.
It answers once, with the documented status, and closes. Deadlines are the subject of ``tests/net``, on a fake
clock: all these listeners are that one server.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

from iop.control_plane.api_request import ROUTE_BODY_LIMIT
from iop.net.guard import GuardLimits
from iop.net.http1 import HttpLimits
from tests.integration.quickstart import SECONDS, RunningQuickstart
from tests.net.test_http1 import NASTY

#: What a smuggled second request asks for: if it was answered, there is a second status line.
SMUGGLED: Final = b"GET /healthz HTTP/1.1\r\nHost: smuggled\r\n\r\n"
STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
MEGABYTE: Final = 1024 * 1024
#: Connections that even the status pages take at once, with room for a probe.
AT_ONCE: Final = 40
#: More than any listener takes.
HUGE: Final = 100 * MEGABYTE


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent on one connection, and the statuses that may come back on it."""

    name: str
    pieces: tuple[bytes, ...]
    allowed: tuple[list[int], ...]


@dataclass(frozen=True, slots=True)
class Listener:
    """An HTTP listener, and how to ask it for something that it has.

    :param path: answers GET with ``ok``.
    :param takes: method and path of a call that may have a body, if there is one.
    :param head_limit: bytes of a head that are still read.
    """

    role: str
    name: str
    address: str
    path: str
    token: str
    ok: int
    takes: tuple[str, str] | None
    body_limit: int
    head_limit: int

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    @property
    def authorization(self) -> bytes:
        """The field that lets a request in, or nothing where none is needed."""
        return f"Authorization: Bearer {self.token}\r\n".encode() if self.token else b""

    def get(self, *fields: bytes, version: bytes = b"1.1") -> bytes:
        """A request that is answered with ``ok``, but for its extra fields."""
        return self.request("GET", self.path, *fields, version=version)

    def request(self, method: str, path: str, *fields: bytes, version: bytes = b"1.1") -> bytes:
        """The head of an authorized request."""
        head = f"{method} {path} HTTP/".encode() + version + b"\r\nHost: localhost\r\n" + self.authorization
        return head + b"".join(field + b"\r\n" for field in fields) + b"\r\n"

    def body_call(self, *fields: bytes) -> bytes:
        """The head of an authorized request of a call that takes bodies, or of one that is nearest to it."""
        method, path = self.takes or ("POST", self.path)
        return self.request(method, path, *fields)

    def let_in(self, data: bytes) -> bytes:
        """A nasty request, made one that would be let in and asks for what takes a body: refused for its form alone."""
        method, path = self.takes or ("POST", self.path)
        opened = data.replace(b"Host", self.authorization + b"Host", 1)
        return re.sub(rb"^POST /[pc] ", f"{method} {path} ".encode(), opened)


class HttpGuardTests(SynchronousTestCase):
    """The contract."""

    def setUp(self) -> None:
        running = RunningQuickstart(Path(self.mktemp()))
        self.addCleanup(running.kill)
        document = running.ready()
        self.home = Path(document["home"])
        self.context = ssl.create_default_context(cafile=document["edge_ca"])
        self.use, self.manage = (Path(document[key]).read_text() for key in ("token_file", "manage_token_file"))

    def listeners(self) -> list[Listener]:
        """Every HTTP listener of every role, from what the roles themselves say that they listen on."""
        found: list[Listener] = []
        for record in sorted((self.home / "run").glob("*.json")):
            document = json.loads(record.read_text())
            for name, address in document["addresses"].items():
                place = (document["role"], name, address)
                if name == "api":
                    call = ("POST", "/v1/chat/completions")
                    limits = HttpLimits()
                    found.append(Listener(*place, "/v1/models", self.use, 200, call, limits.body, limits.headers))
                elif name == "credential_https":
                    call = ("PUT", "/v1/routes/m")
                    found.append(
                        Listener(*place, "/v1/whoami", self.manage, 200, call, ROUTE_BODY_LIMIT, GuardLimits().headers)
                    )
                elif name == "status":
                    found.append(Listener(*place, "/healthz", "", 200, None, 0, 8 * 1024))
                else:
                    self.assertIn(name, ("edge_wire", "node_wire"), "a listener that this contract does not know")
        self.assertEqual(len(found), 5)
        return found

    # -- connections --------------------------------------------------------------------------------------------------

    def connect(self, listener: Listener) -> socket.socket:
        host, _, port = listener.address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=SECONDS)
        return plain if listener.name == "status" else self.context.wrap_socket(plain, server_hostname="localhost")

    def send(self, listener: Listener, *pieces: bytes) -> socket.socket:
        """A connection on which this was sent, as far as it was taken."""
        connection = self.connect(listener)
        for piece in pieces:
            try:
                connection.sendall(piece)
            except (ssl.SSLError, ConnectionError):
                # it hung up before all was sent, which is its right
                break
        return connection

    def statuses(self, listener: Listener, *pieces: bytes) -> list[int]:
        """The statuses of all answers until the listener closes."""
        with closing(self.send(listener, *pieces)) as connection:
            return statuses_in(connection)

    def check(self, cases: Mapping[Listener, Sequence[Case]]) -> None:
        """Each case on a connection of its own, many at once: a refused connection lingers before it closes."""
        for begin in range(0, max(map(len, cases.values())), AT_ONCE):
            with ExitStack() as open_ones:
                sent = [
                    (listener, case, open_ones.enter_context(closing(self.send(listener, *case.pieces))))
                    for listener, of_it in cases.items()
                    for case in of_it[begin : begin + AT_ONCE]
                ]
                for listener, case, connection in sent:
                    self.assertIn(statuses_in(connection), case.allowed, (str(listener), case.name))

    # -- tests --------------------------------------------------------------------------------------------------------

    def test_each_attack_is_answered_once(self) -> None:
        """P1, P18, P20, P32, P37, P39: refused for its form, once, and what comes behind it is never answered."""
        self.check({listener: list(attacks(listener)) for listener in self.listeners()})

    def test_sent_bodies_are_refused(self) -> None:
        """P32: 100 MB that are sent anyway, announced and in chunks, are answered at most once and take no memory."""
        piece = bytes(MEGABYTE)
        for listener in self.listeners():
            before = self.memory_of(listener)
            announced = listener.body_call(b"Content-Length: %d" % HUGE)
            chunked = listener.body_call(b"Transfer-Encoding: chunked")
            chunk = b"%x\r\n" % MEGABYTE + piece + b"\r\n"
            self.assertIn(self.statuses(listener, announced, *[piece] * 100), ([413], []), str(listener))
            self.assertIn(self.statuses(listener, chunked, *[chunk] * 100), ([413], []), str(listener))
            self.assertLess(self.memory_of(listener) - before, listener.body_limit * 3 + 16 * MEGABYTE, str(listener))

    def test_pipelined(self) -> None:
        """P33: answered one after the other, in order, each once, in however many pieces they come."""
        for listener in self.listeners():
            stream = listener.get() * 4 + listener.get(b"Connection: close") + SMUGGLED
            self.assertEqual(self.statuses(listener, stream), [listener.ok] * 5, str(listener))
            pieces = [stream[at : at + 7] for at in range(0, len(stream), 7)]
            self.assertEqual(self.statuses(listener, *pieces), [listener.ok] * 5, str(listener))

    def test_it_still_serves(self) -> None:
        """P48: whoever sends nothing, half a request, or does not read its answers is no trouble to others."""
        for listener in self.listeners():
            held = [self.connect(listener) for _ in range(20)]
            for number, connection in enumerate(held):
                self.addCleanup(connection.close)
                if number % 3 == 1:
                    connection.sendall(listener.get()[: number + 5])
                elif number % 3 == 2:
                    connection.setblocking(False)
                    for _ in range(200):
                        try:
                            connection.send(listener.get() * 50)
                        except (BlockingIOError, ssl.SSLWantWriteError):
                            break
            self.assertEqual(self.statuses(listener, listener.get(b"Connection: close")), [listener.ok], str(listener))

    def memory_of(self, listener: Listener) -> int:
        """Bytes that the listener's process has in memory."""
        pid = json.loads((self.home / "run" / f"{listener.role}.json").read_text())["pid"]
        (pages,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(pages) * 1024


def attacks(listener: Listener) -> Iterator[Case]:
    """What is sent to a listener, and the statuses of which one comes back."""
    for name, (status, data) in NASTY.items():
        attack = listener.let_in(data)
        middle = len(attack) // 2
        # who takes no body refuses one from its head or its first chunk, before the rest of its form matters
        allowed = ([status],) if listener.takes is not None or not has_body(data) else ([status], [413])
        yield Case(name, (attack + SMUGGLED,), allowed)
        yield Case(f"{name}, in two pieces", (attack[:middle], attack[middle:], SMUGGLED), allowed)
        if listener.token:
            yield Case(f"{name}, without a token", (data + SMUGGLED,), (*allowed, [401], [413]))
    for fields in (
        (b"Authorization: Bearer a", b"authorization: Bearer b"),
        (b"HOST: localhost",),
        (b"Content-Length: 0", b"Content-Length: 0"),
        (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    ):
        yield Case(f"{fields} once more", (listener.get(*fields) + SMUGGLED,), ([400],))
    # what another reader might take for chunked, or not
    for value in (
        *(b"chunked,", b", chunked", b"chunked;q=1", b'"chunked"', b"chunked\t, identity", b"identity, chunked"),
        *(b"\x0cchunked", b"chunked\x00", b"chunke", b"chunkedd", b"cow", b"", b"deflate", b"chunked chunked"),
    ):
        call = listener.body_call(b"Transfer-Encoding: " + value)
        yield Case(f"Transfer-Encoding {value!r}", (call, b"0\r\n\r\n" + SMUGGLED), ([400],))
    for version in (b"1.0", b"2.0", b"0.9", b"1.2", b"1.10", b"01.1", b"1.1.1", b"3", b"1,1", b"1.1 "):
        yield Case(f"HTTP/{version!r}", (listener.get(version=version) + SMUGGLED,), ([400], [505]))
    yield Case("another expectation", (listener.get(b"Expect: 200-ok") + SMUGGLED,), ([417],))
    # refused from the head, before any of it was sent or asked for
    for size in (listener.body_limit + 1, HUGE, 10**14):
        yield Case(f"{size} bytes", (listener.body_call(b"Content-Length: %d" % size),), ([413],))
    yield Case("100-continue", (listener.body_call(b"Expect: 100-continue", b"Content-Length: %d" % HUGE),), ([413],))
    for name, head in {
        "one large field": listener.get(b"A: " + b"x" * listener.head_limit),
        "many fields": listener.get(*(b"A: %d" % number for number in range(101))),
        "very many fields": listener.get(*(b"A: %d" % number for number in range(20_000))),
        "large target": listener.request("GET", "/" + "x" * listener.head_limit),
        "head without an end": listener.get()[:-2] + b"A: b\r\n" * 100_000,
        "name without an end": listener.get()[:-2] + b"a" * MEGABYTE,
    }.items():
        # it may close while much is still being sent, which costs the sender the answer
        yield Case(name, (head,), ([431], []))


def has_body(data: bytes) -> bool:
    """Whether a request says that a body follows."""
    return re.search(rb"(?i)content-length|transfer-encoding", data) is not None


def statuses_in(connection: socket.socket) -> list[int]:
    """The statuses of all answers until the other end closes, in good order or not."""
    return [int(status) for status in STATUS_LINE.findall(b"".join(_received(connection)))]


def _received(connection: socket.socket) -> Iterator[bytes]:
    try:
        while data := connection.recv(65536):
            yield data
    except (ssl.SSLError, ConnectionError):
        # dropped, because we sent more than it wanted to read
        return
