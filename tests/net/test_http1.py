"""The Edge's HTTP/1.1 server, in memory and on a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.errors import BadHttp
from iop.net.http1 import Headers, HttpLimits, HttpServerFactory, IExchange, IHttpApplication, RequestHead, Wanted
from iop.net.http_connection import CLOSE_SECONDS, LINGER_SECONDS, SENT_AHEAD, HttpConnection
from iop.testing.clock import FakeClock

from .transports import MemoryTransport

LIMITS = HttpLimits(headers=2048, header_count=20, body=1000, connections=3)
GET = b"GET /a%20b?c=d HTTP/1.1\r\nHost: edge\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
POST = b"POST /p HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0000000A\r\n0123456789\r\n0\r\n\r\n"
)


@implementer(IHttpApplication)
class Recorder:
    """Takes every request with bodies up to ``limit`` and answers at once, unless told otherwise."""

    def __init__(self) -> None:
        self.limit: int | None = 100
        self.owner: str | None = None
        self.exchanges: list[IExchange] = []
        self.requests: list[tuple[RequestHead, bytes]] = []
        self.on_head: Callable[[IExchange], object] = lambda exchange: None
        self.on_body: Callable[[IExchange], object] = lambda exchange: exchange.respond(200, [(b"x-a", b"b")], b"hi")

    def headed(self, exchange: IExchange) -> Wanted | None:
        self.exchanges.append(exchange)
        self.on_head(exchange)
        return None if self.limit is None else Wanted(self.limit, partial(self.take, exchange), self.owner)

    def take(self, exchange: IExchange, body: bytearray) -> None:
        self.requests.append((exchange.head, bytes(body)))
        self.on_body(exchange)

    def refuse(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        return [(b"content-type", b"text/plain")], f"{code}: {message}".encode()


def nothing(exchange: IExchange) -> None:
    """Answer later."""


class ServerCase(SynchronousTestCase):
    """A server, its clock, and a client's end."""

    def setUp(self) -> None:
        self.serve(LIMITS)

    def serve(self, limits: HttpLimits) -> None:
        self.clock = FakeClock()
        self.application = Recorder()
        self.connections: list[HttpConnection] = []
        self.factory = HttpServerFactory(self.application, self.clock, limits)
        self.transport = self.connect()

    def connect(self) -> MemoryTransport:
        self.connection = connection = self.factory.buildProtocol(None)
        self.connections.append(connection)
        transport = MemoryTransport()
        IProtocol(connection).makeConnection(transport)
        return transport

    def send(self, *pieces: bytes) -> bytes:
        """Send, and take what was answered, without Date fields."""
        for piece in pieces:
            self.connection.dataReceived(piece)
        return self.answer()

    def answer(self) -> bytes:
        date = b"date: " + formatdate(self.clock.wall_ms() // 1000, usegmt=True).encode() + b"\r\n"
        return self.transport.take().replace(date, b"")

    def disconnect(self) -> None:
        self.connection.connectionLost(Failure(ConnectionDone()))

    def refused(self, status: int, *pieces: bytes) -> None:
        """What is sent is answered with ``status`` and the connection closes, in steps."""
        answer = self.send(*pieces)
        self.assertEqual(answer[:13], b"HTTP/1.1 %d " % status, answer)
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertIn(b"\r\nconnection: close", head)
        self.assertIn(b"\r\ncontent-length: %d\r\n" % len(body), head)
        self.assert_lingers()

    def assert_lingers(self) -> None:
        """The connection reads and drops for a while, then closes, then is dropped."""
        self.assertFalse(self.transport.disconnecting)
        self.assertTrue(self.transport.reading)
        self.assertEqual(self.send(b"x" * 100_000, GET), b"")
        self.clock.advance(LINGER_SECONDS)
        self.assertTrue(self.transport.disconnecting)
        self.assertFalse(self.transport.disconnected)
        self.clock.advance(LIMITS.write_stall_seconds)
        self.assertTrue(self.transport.disconnected)

    def tearDown(self) -> None:
        for connection in self.connections:
            connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])


OK = b"HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 2\r\n\r\nhi"


class RequestTests(ServerCase):
    """What reaches the application."""

    def test_head(self) -> None:
        """Path and query stay as they were sent; names are lower-cased, values stripped."""
        self.assertEqual(self.send(GET.replace(b"\r\n\r\n", b"\r\nX-Y: \t z \t\r\n\r\n")), OK)
        head, body = self.application.requests[0]
        self.assertEqual(
            (head.method, head.path, head.query, head.headers),
            ("GET", "/a%20b", "c=d", ((b"host", b"edge"), (b"x-y", b"z"))),
        )
        self.assertEqual(head.header(b"x-y"), b"z")
        self.assertIsNone(head.header(b"x-z"))
        self.assertEqual(body, b"")
        self.assertTrue(self.transport.no_delay)

    def test_bodies(self) -> None:
        """Both ways to delimit a body."""
        self.assertEqual(self.send(POST), OK)
        self.assertEqual(self.send(CHUNKED), OK)
        self.assertEqual([body for _, body in self.application.requests], [b"hello", b"abc0123456789"])
        self.assertFalse(self.transport.disconnecting)

    def test_every_split(self) -> None:
        """P33: four requests sent ahead are answered alike, in order, wherever the bytes are split."""
        stream = POST + GET + CHUNKED + GET
        expected = [b"hello", b"", b"abc0123456789", b""]
        for place in range(len(stream) + 1):
            self.serve(LIMITS)
            self.assertEqual(self.send(stream[:place], stream[place:]), OK * 4)
            self.assertEqual([body for _, body in self.application.requests], expected)
        self.serve(LIMITS)
        self.assertEqual(self.send(*(stream[i : i + 1] for i in range(len(stream)))), OK * 4)
        self.assertEqual([body for _, body in self.application.requests], expected)

    def test_empty_line_before_a_request(self) -> None:
        """P33: one empty line before each request is ignored (RFC 9112, 2.2), wherever the bytes are split."""
        stream = b"\r\n" + POST + b"\r\n" + GET + b"\r\n" + CHUNKED + GET + b"\r\n"
        for place in range(len(stream) + 1):
            self.serve(LIMITS)
            self.assertEqual(self.send(stream[:place], stream[place:]), OK * 4)
        self.serve(LIMITS)
        self.assertEqual(self.send(*(stream[i : i + 1] for i in range(len(stream)))), OK * 4)
        self.assertEqual([body for _, body in self.application.requests], [b"hello", b"", b"abc0123456789", b""])
        self.factory.drain()
        self.assertTrue(self.transport.disconnecting)

    def test_one_at_a_time(self) -> None:
        """What is sent ahead waits until the answer before it ended."""
        self.application.on_body = nothing
        self.assertEqual(self.send(GET + POST + GET), b"")
        self.assertEqual(len(self.application.exchanges), 1)
        for count in (2, 3, 3):
            self.application.exchanges[-1].respond(200, [(b"x-a", b"b")], b"hi")
            self.assertEqual(self.answer(), OK)
            self.assertEqual(len(self.application.exchanges), count)

    def test_many_at_once_need_no_stack(self) -> None:
        """Requests that are answered at once do not recurse."""
        self.assertEqual(self.send(GET * 5000), OK * 5000)

    def test_sent_ahead_is_bounded(self) -> None:
        """P34: beyond a bound nothing more is read until the request before is answered."""
        self.application.on_body = nothing
        self.send(GET, b"x" * SENT_AHEAD)
        self.assertTrue(self.transport.reading)
        self.send(b"x")
        self.assertFalse(self.transport.reading)
        # pausing and resuming the answer does not let more in
        self.connection.pauseProducing()
        self.connection.resumeProducing()
        self.assertFalse(self.transport.reading)
        self.application.exchanges[0].respond(200, [], b"")
        self.assertIn(b"HTTP/1.1 431 ", self.answer())
        self.assertTrue(self.transport.reading)

    def test_sent_ahead_of_the_end(self) -> None:
        """P34: a client that was not read from any more is again for its TLS goodbye, however the connection ends."""
        self.application.on_body = nothing
        self.send(GET, b"x" * (SENT_AHEAD + 1))
        self.assertFalse(self.transport.reading)
        self.factory.drain()
        self.application.exchanges[0].respond(200, [], b"")
        self.assertTrue(self.transport.reading)
        self.assertTrue(self.transport.disconnecting)

    def test_bodiless_methods_may_have_bodies(self) -> None:
        """The framing decides about a body, not the method."""
        self.send(POST.replace(b"POST", b"GET") + GET)
        self.assertEqual([body for _, body in self.application.requests], [b"hello", b""])


class AnswerTests(ServerCase):
    """What the client gets."""

    def test_date(self) -> None:
        """Every answer is dated."""
        self.clock.advance(12)
        self.connection.dataReceived(GET)
        date = formatdate(self.clock.wall_ms() // 1000, usegmt=True)
        self.assertIn(f"\r\ndate: {date}\r\n".encode(), self.transport.take())

    def test_streamed(self) -> None:
        """An answer in pieces; an empty piece does not end it."""
        self.application.on_body = nothing
        self.send(GET)
        exchange = self.application.exchanges[0]
        exchange.start(201, [(b"content-type", b"text/event-stream")])
        self.assertEqual(
            self.answer(),
            b"HTTP/1.1 201 Created\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        exchange.write(b"x" * 17)
        exchange.write(b"")
        exchange.write(b"y")
        exchange.finish()
        self.assertEqual(self.answer(), b"11\r\n" + b"x" * 17 + b"\r\n1\r\ny\r\n0\r\n\r\n")
        self.application.on_body = Recorder().on_body
        self.assertEqual(self.send(GET), OK)

    def test_head_and_bodiless_statuses(self) -> None:
        """HEAD gets the head that GET would get; 204 and 304 have no body and no length."""
        head = HEAD
        self.assertEqual(self.send(head), OK[:-2])

        def stream(exchange: IExchange) -> None:
            exchange.start(200, [])
            exchange.write(b"x")
            exchange.finish()

        self.application.on_body = stream
        self.assertEqual(self.send(head), b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for status, phrase in ((204, b"No Content"), (304, b"Not Modified")):

            def whole(exchange: IExchange, status: int = status) -> None:
                exchange.respond(status, [], b"dropped")

            self.application.on_body = whole
            self.assertEqual(self.send(GET), b"HTTP/1.1 %d %b\r\n\r\n" % (status, phrase))

            def bare(exchange: IExchange, status: int = status) -> None:
                exchange.start(status, [])
                exchange.write(b"x")
                exchange.finish()

            self.application.on_body = bare
            self.assertEqual(self.send(GET), b"HTTP/1.1 %d %b\r\n\r\n" % (status, phrase))

    def test_head_refused(self) -> None:
        """A refusal of a HEAD request has no body either."""
        answer = self.send(b"HEAD / HTTP/1.1\r\nHost: e\r\nContent-Length: 101\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "))
        self.assertTrue(answer.endswith(b"connection: close\r\n\r\n"))

    def test_no_field_breaks_out(self) -> None:
        """P18: fields that would split the answer, or delimit it another way, are refused and nothing is sent."""
        self.application.on_body = nothing
        self.send(GET)
        exchange = self.application.exchanges[0]
        for field in (
            (b"a", b"b\r\nc: d"),
            (b"a\n", b"b"),
            (b"a", b"b\0"),
            (b"a", b"\r"),
            (b"content-length", b"5"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"keep-alive"),
        ):
            for answer in (lambda f=field: exchange.respond(200, [f], b""), lambda f=field: exchange.start(200, [f])):
                self.assertEqual(self.assertRaises(BadHttp, answer).status, 502)
        for status in (0, 101, 199, 600, -1):
            self.assertRaises(BadHttp, exchange.respond, status, [], b"")
        exchange.respond(299, [], b"")
        self.assertEqual(self.answer(), b"HTTP/1.1 299 \r\ncontent-length: 0\r\n\r\n")

    def test_order(self) -> None:
        """An answer has one shape; anything else is the application's mistake and said so."""
        self.application.on_body = nothing
        self.send(GET)
        exchange = self.application.exchanges[0]
        self.assertRaises(RuntimeError, exchange.write, b"x")
        self.assertRaises(RuntimeError, exchange.finish)
        exchange.start(200, [])
        self.assertRaises(RuntimeError, exchange.start, 200, [])
        self.assertRaises(RuntimeError, exchange.respond, 200, [], b"")
        exchange.finish()
        self.assertRaises(RuntimeError, exchange.write, b"x")
        self.assertRaises(RuntimeError, exchange.finish)
        self.assertRaises(RuntimeError, exchange.respond, 200, [], b"")
        # and a finished exchange cannot touch the next one
        self.send(GET)
        exchange.abort()
        self.assertFalse(self.transport.disconnected)

    def test_client_closes(self) -> None:
        """``Connection: close`` is honoured in any list and case, and nothing after it is read."""
        for value in (b"close", b"Close", b"foo , CLOSE", b"x\r\nConnection: close\r\nConnection: y"):
            self.serve(LIMITS)
            answer = self.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: " + value + b"\r\n\r\n") + GET)
            self.assertEqual(answer, OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            self.assertTrue(self.transport.disconnecting)
        self.serve(LIMITS)
        self.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: closed, keep-alive\r\n\r\n"))
        self.assertFalse(self.transport.disconnecting)


class EarlyAnswerTests(ServerCase):
    """Answers that come before the request is whole."""

    def test_without_body(self) -> None:
        """A request without a body that is answered on its head keeps the connection."""
        self.application.on_head = lambda exchange: exchange.respond(401, [], b"")
        for limit in (None, 100):
            self.application.limit = limit
            self.assertEqual(self.send(GET), b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
        self.assertEqual(self.application.requests, [])
        self.assertFalse(self.transport.disconnecting)

    def test_before_the_body(self) -> None:
        """P32: with the body unread the connection closes; nobody takes body bytes for the next request."""
        self.application.on_head = lambda exchange: exchange.respond(401, [], b"")
        self.refused(401, POST[:-2])
        self.assertEqual(self.application.requests, [])

    def test_later_without_the_body(self) -> None:
        """An application that wants no body may still answer later, in pieces."""
        self.application.limit = None
        self.assertEqual(self.send(POST + GET), b"")
        self.clock.advance(1000)
        exchange = self.application.exchanges[0]
        exchange.start(200, [])
        exchange.finish()
        self.assertIn(b"connection: close\r\n", self.answer())
        self.assertEqual(len(self.application.exchanges), 1)
        self.assert_lingers()

    def test_during_the_body(self) -> None:
        """An answer that comes while the body is still arriving ends the reading."""
        self.send(POST[:-2])
        self.application.exchanges[0].respond(429, [], b"")
        self.assertEqual(
            self.answer(), b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.assert_lingers()


class ExpectTests(ServerCase):
    """``Expect: 100-continue``."""

    HEAD = POST[:-9] + b"\r\nExpect: 100-Continue\r\n\r\n"

    def test_continue(self) -> None:
        """The client is asked for its body once the head was accepted."""
        self.assertEqual(self.send(self.HEAD), b"HTTP/1.1 100 Continue\r\n\r\n")
        self.assertEqual(self.send(b"hello"), OK)

    def test_not_needed(self) -> None:
        """Nobody who already sends is asked, nor who has nothing to send."""
        self.assertEqual(self.send(self.HEAD + b"hello"), OK)
        self.assertEqual(self.send(GET.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")), OK)

    def test_refused_instead(self) -> None:
        """A body that will not be taken is not asked for."""
        self.application.limit = 4
        self.refused(413, self.HEAD)

    def test_application_refuses(self) -> None:
        """A head that the application refuses is answered with that."""
        self.application.on_head = lambda exchange: exchange.respond(401, [], b"")
        self.refused(401, self.HEAD)

    def test_other_expectations(self) -> None:
        """417 for anything else."""
        self.refused(417, GET.replace(b"\r\n\r\n", b"\r\nExpect: 200-ok\r\n\r\n"))


def with_field(field: bytes, request: bytes = GET) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\n" + field + b"\r\n\r\n", 1)


NASTY: dict[str, tuple[int, bytes]] = {
    "Content-Length and Transfer-Encoding": (400, with_field(b"Content-Length: 5", CHUNKED)),
    "Transfer-Encoding and Content-Length": (400, with_field(b"Transfer-Encoding: chunked", POST)),
    "Content-Length twice, equal": (400, with_field(b"Content-Length: 5", POST)),
    "Content-Length twice, different": (400, with_field(b"Content-Length: 6", POST)),
    "Content-Length list": (400, POST.replace(b": 5", b": 5, 5")),
    "Content-Length with sign": (400, POST.replace(b": 5", b": +5")),
    "Content-Length negative": (400, POST.replace(b": 5", b": -5")),
    "Content-Length hexadecimal": (400, POST.replace(b": 5", b": 0x5")),
    "Content-Length empty": (400, POST.replace(b": 5", b":")),
    "Content-Length beyond integers": (400, POST.replace(b": 5", b": " + b"9" * 30)),
    "Content-Length of 10 TB": (413, POST.replace(b": 5", b": 10000000000000")),
    "Transfer-Encoding twice": (400, with_field(b"Transfer-Encoding: chunked", CHUNKED)),
    "Transfer-Encoding identity": (400, CHUNKED.replace(b": chunked", b": identity")),
    "Transfer-Encoding gzip, chunked": (400, CHUNKED.replace(b": chunked", b": gzip, chunked")),
    "Transfer-Encoding chunked, chunked": (400, CHUNKED.replace(b": chunked", b": chunked, chunked")),
    "Transfer-Encoding xchunked": (400, CHUNKED.replace(b": chunked", b": xchunked")),
    "Transfer-Encoding with vertical tab": (400, CHUNKED.replace(b": chunked", b": \x0bchunked")),
    "Transfer-Encoding with a space before the colon": (400, CHUNKED.replace(b"Encoding:", b"Encoding :")),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "empty Host": (400, GET.replace(b": edge", b":")),
    "Host twice": (400, with_field(b"Host: edge")),
    "Host with a path": (400, GET.replace(b": edge", b": edge/x")),
    "Host with userinfo": (400, GET.replace(b": edge", b": me@edge")),
    "Authorization twice": (400, with_field(b"Authorization: Bearer a\r\nAuthorization: Bearer b")),
    "Content-Type twice": (400, with_field(b"Content-Type: a/b\r\ncontent-type: a/b")),
    "folded field": (400, with_field(b"A: b\r\n c")),
    "white space before the first field": (400, GET.replace(b"Host", b" Host")),
    "bare LF after the request line": (400, GET.replace(b"1.1\r\n", b"1.1\n")),
    "bare LF after a field": (400, with_field(b"A: b\nC: d")),
    "bare LF for the empty line": (400, GET.replace(b"\r\n\r\n", b"\r\n\n")),
    "bare LF everywhere": (400, GET.replace(b"\r\n", b"\n")),
    "bare CR in a value": (400, with_field(b"A: b\rC: d")),
    "bare CR after the request line": (400, GET.replace(b"1.1\r\n", b"1.1\r")),
    "NUL in a value": (400, with_field(b"A: \0")),
    "control byte in a value": (400, with_field(b"A: \x01")),
    "DEL in a value": (400, with_field(b"A: \x7f")),
    "space in a name": (400, with_field(b"A B: c")),
    "no name": (400, with_field(b": c")),
    "no colon": (400, with_field(b"A")),
    "name beyond ASCII": (400, with_field(b"\xc3\xa9: c")),
    "absolute form": (400, GET.replace(b"/a%20b", b"http://edge/a")),
    "authority form": (400, GET.replace(b"/a%20b?c=d", b"edge:80")),
    "asterisk form": (400, b"OPTIONS * HTTP/1.1\r\nHost: edge\r\n\r\n"),
    "fragment": (400, GET.replace(b"c=d", b"c#d")),
    "control byte in the target": (400, GET.replace(b"%20", b"\x01")),
    "target beyond ASCII": (400, GET.replace(b"%20", b"\xff")),
    "CONNECT": (400, b"CONNECT edge:443 HTTP/1.1\r\nHost: edge:443\r\n\r\n"),
    "Upgrade": (400, with_field(b"Connection: Upgrade\r\nUpgrade: websocket")),
    "Upgrade to HTTP/2": (400, with_field(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x")),
    "Upgrade without Connection": (400, with_field(b"Upgrade: h2c")),
    "HTTP/2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2.0": (505, GET.replace(b"HTTP/1.1", b"HTTP/2.0")),
    "HTTP/1.0": (505, GET.replace(b"HTTP/1.1", b"HTTP/1.0")),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "RTSP": (505, b"DESCRIBE / RTSP/1.0\r\nHost: edge\r\n\r\n"),
    "another protocol of version 1.1": (400, b"GET / ICE/1.1\r\nHost: edge\r\n\r\n"),
    "lower-case protocol": (400, GET.replace(b"HTTP", b"http")),
    "lower-case method": (400, GET.replace(b"GET", b"get")),
    "unknown method": (400, GET.replace(b"GET", b"FOO")),
    "two spaces in the request line": (400, GET.replace(b"GET ", b"GET  ")),
    "tab in the request line": (400, GET.replace(b"GET ", b"GET\t")),
    "space after the version": (400, GET.replace(b"1.1\r\n", b"1.1 \r\n")),
    "empty lines first": (400, b"\r\n\r\n" + GET),
    "nothing but empty lines": (400, b"\r\n\r\n\r\n\r\n"),
    "bare LF first": (400, b"\n" + GET),
    "bare CR first": (400, b"\r" + GET),
    "empty line, then bare LF": (400, b"\r\n\n" + GET),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "Content-Encoding": (415, with_field(b"Content-Encoding: gzip", POST)),
    "Content-Encoding twice": (400, with_field(b"Content-Encoding: identity\r\nContent-Encoding: gzip", POST)),
    "chunk extension": (400, CHUNKED.replace(b"3\r\n", b"3;a=b\r\n", 1)),
    "chunk extension that is long": (400, CHUNKED.replace(b"3\r\n", b"3;" + b"a" * 1000, 1)),
    "chunk size ends in LF": (400, CHUNKED.replace(b"\r\n3\r\n", b"\r\n3\n")),
    "chunk size with sign": (400, CHUNKED.replace(b"\r\n3\r\n", b"\r\n+3\r\n")),
    "chunk size with prefix": (400, CHUNKED.replace(b"\r\n3\r\n", b"\r\n0x3\r\n")),
    "chunk size with underscore": (400, CHUNKED.replace(b"\r\n3\r\n", b"\r\n0_3\r\n")),
    "chunk size empty": (400, CHUNKED.replace(b"\r\n3\r\n", b"\r\n\r\n")),
    "chunk size with too many zeros": (400, CHUNKED.replace(b"\r\n3\r\n", b"\r\n000000003\r\n")),
    "chunk longer than it says": (400, CHUNKED.replace(b"abc", b"abcd")),
    "chunk shorter than it says": (400, CHUNKED.replace(b"abc", b"ab")),
    "chunk ends in LF": (400, CHUNKED.replace(b"abc\r\n", b"abc\n")),
    "trailers": (400, CHUNKED[:-2] + b"Host: other\r\n\r\n"),
    "body ends in LF": (400, CHUNKED[:-2] + b"\n"),
}


class NastyTests(ServerCase):
    """Requests that two readers could take differently are refused, and the connection closes."""

    def test_each(self) -> None:
        """P39, smuggling: refused with one answer, unseen by the application, in one piece and byte by byte."""
        for name, (status, data) in NASTY.items():
            for pieces in ((data + GET,), tuple(data[i : i + 1] for i in range(len(data)))):
                self.serve(LIMITS)
                try:
                    self.refused(status, *pieces)
                    self.assertEqual(self.application.requests, [])
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
                self.disconnect()

    def test_what_was_answered_before_stands(self) -> None:
        """A nasty request after a good one is refused after the good one's answer."""
        self.application.on_body = nothing
        self.assertEqual(self.send(GET + NASTY["Host twice"][1]), b"")
        self.application.exchanges[0].respond(200, [(b"x-a", b"b")], b"hi")
        self.assertEqual(self.answer()[: len(OK) + 13], OK + b"HTTP/1.1 400 ")

    def test_shape(self) -> None:
        """Refusals have the application's shape and a stable code."""
        self.assertEqual(
            self.send(with_field(b"Content-Encoding: br", POST)),
            b"HTTP/1.1 415 Unsupported Media Type\r\ncontent-type: text/plain\r\ncontent-length: 62\r\n"
            b"connection: close\r\n\r\ncontent_encoding_refused: the body must not be content-encoded",
        )

    def test_identity_is_no_encoding(self) -> None:
        """P39: ``identity`` changes nothing."""
        self.assertEqual(self.send(with_field(b"Content-Encoding: Identity", POST)), OK)

    @given(st.lists(st.binary(max_size=300), max_size=8))
    @settings(max_examples=200)
    def test_random_bytes(self, pieces: list[bytes]) -> None:
        """Whatever comes, nothing is raised."""
        self.serve(LIMITS)
        self.send(*pieces)
        self.clock.advance(1000)
        self.disconnect()

    @given(
        st.lists(
            st.sampled_from([GET, POST, CHUNKED, *(data for _, data in NASTY.values()), b"\r\n", b"0", b"\0", b": "]),
            max_size=6,
        ),
        st.data(),
    )
    @settings(max_examples=300)
    def test_splits_do_not_matter(self, parts: list[bytes], data: st.DataObject) -> None:
        """P33: any stream is answered the same however it is split."""
        stream = b"".join(parts)
        self.serve(LIMITS)
        expected = self.send(stream)
        requests = self.application.requests
        self.disconnect()
        places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        self.serve(LIMITS)
        pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]
        self.assertEqual(self.send(*pieces), expected)
        self.assertEqual(self.application.requests, requests)


class LimitTests(ServerCase):
    """Each limit at the limit and one past."""

    def test_head_bytes(self) -> None:
        """P32: the head's size, known before it ends."""
        room = LIMITS.headers - len(with_field(b"A: "))
        self.assertEqual(self.send(with_field(b"A: " + b"x" * room)), OK)
        self.refused(431, with_field(b"A: " + b"x" * (room + 1)))
        self.serve(LIMITS)
        self.refused(431, b"GET /" + b"x" * LIMITS.headers)

    def test_head_fields(self) -> None:
        """The number of fields."""
        fields = [b"A: b"] * (LIMITS.header_count - 1)
        self.assertEqual(self.send(with_field(b"\r\n".join(fields))), OK)
        self.refused(431, with_field(b"\r\n".join([*fields, b"A: b"])))

    def test_body(self) -> None:
        """P32: a body's size, refused from the head alone, by what the application allows."""
        self.application.limit = 5
        self.assertEqual(self.send(POST), OK)
        self.refused(413, POST.replace(b": 5", b": 6")[:-5])
        self.assertEqual(len(self.application.requests), 1)

    def test_cap(self) -> None:
        """P32: the server's own limit holds whatever the application allows."""
        self.application.limit = 1_000_000
        head = POST[: -len(b"5\r\n\r\nhello")]
        self.assertEqual(self.send(head + b"1000\r\n\r\n" + b"x" * 1000), OK)
        self.refused(413, head + b"1001\r\n\r\n")

    def test_chunks(self) -> None:
        """P32: a chunked body's size, refused from the announcement of the chunk that goes too far."""
        self.application.limit = 13
        self.assertEqual(self.send(CHUNKED), OK)
        self.application.limit = 12
        self.refused(413, CHUNKED[: CHUNKED.index(b"0123")])

    def test_small_chunks(self) -> None:
        """A body of one-byte chunks is refused once it is mostly framing."""
        self.serve(HttpLimits(body=10_000_000))
        self.application.limit = 10_000_000
        self.refused(400, CHUNKED[: CHUNKED.index(b"3\r\n")], b"1\r\nx\r\n" * 20_000)

    def test_connections(self) -> None:
        """Connections beyond the limit are dropped at once, unheard, while all are busy; a closed one makes room."""
        self.application.on_body = nothing
        self.connection.dataReceived(GET)
        self.connect()
        self.connection.dataReceived(GET)
        last, last_connection = self.connect(), self.connection
        self.connection.dataReceived(GET)
        self.assertFalse(last.disconnected)
        beyond = self.connect()
        self.assertTrue(beyond.disconnected)
        self.assertEqual(self.send(GET), b"")
        self.disconnect()
        self.assertTrue(self.connect().disconnected)
        last_connection.connectionLost(Failure(ConnectionDone()))
        self.assertFalse(self.connect().disconnected)

    def test_the_idlest_makes_room(self) -> None:
        """P19, P32: who only connects keeps nobody out: of too many, who has been idle for longest is dropped."""
        first, first_connection = self.transport, self.connection
        second, third = self.connect(), self.connect()
        first_connection.dataReceived(GET)
        self.assertFalse(self.connect().disconnected)
        self.assertEqual([t.disconnected for t in (first, second, third)], [False, True, False])
        self.assertFalse(self.connect().disconnected)
        self.assertEqual([t.disconnected for t in (first, third)], [False, True])

    def test_unknown_senders_make_room(self) -> None:
        """P19, P32: so does a head that does not end, and a body of nobody known; not one whose sender is known."""
        self.connection.dataReceived(GET[:10])
        self.assertFalse(any(self.connect().disconnected for _ in range(3)))
        self.assertTrue(self.transport.disconnected)
        for owner, dropped in ((None, True), ("ada", False)):
            self.serve(LIMITS)
            self.application.owner = owner
            self.connection.dataReceived(POST[:-1])
            self.assertFalse(any(self.connect().disconnected for _ in range(3)))
            self.assertEqual(self.transport.disconnected, dropped)

    def test_refused_clients_make_room(self) -> None:
        """P19, P32: a connection that is closing after a refusal is in nobody's way."""
        self.connection.dataReceived(b"GET x\r\n\r\n")
        self.assertFalse(any(self.connect().disconnected for _ in range(3)))
        self.assertTrue(self.transport.disconnected)


class BodyTotalTests(ServerCase):
    """P32: all bodies of a listener together have a limit."""

    LIMITS = HttpLimits(body=1000, body_total=18)
    NO_ROOM = (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 5\r\ncontent-length: 78\r\n"
        b"connection: close\r\n\r\noverloaded: this server holds as many request bodies as it can; try again soon"
    )

    def setUp(self) -> None:
        self.serve(self.LIMITS)
        self.application.on_body = nothing

    def sized(self, length: int) -> bytes:
        return POST.replace(b": 5\r\n\r\nhello", b": %d\r\n\r\n" % length)

    def hold(self, *pieces: bytes) -> IExchange:
        """A request that is not answered, on a connection of its own."""
        self.transport = self.connect()
        self.assertEqual(self.send(*pieces), b"")
        return self.application.exchanges[-1]

    def assert_room(self, room: int) -> None:
        """There is room for ``room`` bytes and not for one more."""
        for length, reply in ((room + 1, self.NO_ROOM), (room, b"")):
            for head, chunked in ((self.sized(length), False), (CHUNKED[: CHUNKED.index(b"3\r\n")], True)):
                self.transport = self.connect()
                pieces = (head, b"%x\r\n" % length) if chunked else (head,)
                self.assertEqual(self.send(*pieces), reply, (room, length, chunked))
                self.disconnect()

    def test_what_is_announced_counts(self) -> None:
        """A body counts from its head on, or chunk by chunk, before any of it came."""
        self.disconnect()
        self.assert_room(18)
        self.hold(self.sized(6))
        self.assert_room(12)
        self.disconnect()

    def test_chunks_count_as_they_come(self) -> None:
        """A chunked body counts by what it has announced, and is refused where it would grow too far."""
        self.disconnect()
        cut = CHUNKED.index(b"0000000A")
        self.hold(CHUNKED[:cut])
        connection, transport = self.connection, self.transport
        self.assert_room(15)
        self.connection, self.transport = connection, transport
        self.assertEqual(self.send(CHUNKED[cut:]), b"")
        self.assert_room(5)
        gone: list[bool] = []
        self.hold(CHUNKED[:cut]).on_gone(lambda: gone.append(True))
        self.assertEqual(self.send(CHUNKED[cut:]), self.NO_ROOM)
        self.assertEqual(gone, [True])
        self.assert_lingers()
        self.assert_room(5)

    def test_every_end_gives_back(self) -> None:
        """What a body took is free again when its exchange ends in any way, and not before."""
        self.disconnect()

        def whole(exchange: IExchange) -> None:
            exchange.respond(200, [], b"")

        def streamed(exchange: IExchange) -> None:
            exchange.start(200, [])
            exchange.write(b"x")
            self.assert_room(13)
            exchange.finish()

        for end in (whole, streamed):
            for request in (POST, self.sized(5), CHUNKED.replace(b"0000000A\r\n0123456789\r\n", b"2\r\n01\r\n")):
                exchange = self.hold(request)
                connection = self.connection
                self.assert_room(13)
                end(exchange)
                self.assert_room(18)
                connection.connectionLost(Failure(ConnectionDone()))
                self.assert_room(18)

    def test_refusals_and_departures_give_back(self) -> None:
        """The same for clients that go, come too late, or send what is refused, and for an application that fails."""
        self.disconnect()
        for request in (POST, self.sized(5)):
            self.hold(request)
            self.disconnect()
            self.assert_room(18)
        self.hold(self.sized(5))
        self.clock.advance(LIMITS.receive_seconds)
        self.assertIn(b" 408 ", self.answer())
        self.assert_room(18)
        self.hold(CHUNKED[: CHUNKED.index(b"0000000A")])
        self.assertIn(b" 400 ", self.send(b"x\r\n"))
        self.assert_room(18)
        exchange = self.hold(POST)
        connection = self.connection
        exchange.abort()
        connection.connectionLost(Failure(ConnectionDone()))
        self.assert_room(18)

        def fail(exchange: IExchange) -> None:
            raise BadHttp(418, "short and stout")

        self.application.on_body = fail
        self.transport = self.connect()
        self.assertIn(b" 418 ", self.send(POST))
        self.application.on_body = nothing
        self.assert_room(18)

    def test_one_connection_after_the_other(self) -> None:
        """Requests on one connection take turns, however many are sent ahead."""
        self.application.on_body = Recorder().on_body
        self.assertEqual(self.send(POST * 100 + CHUNKED * 100), OK * 200)

    def test_an_owner_has_no_more_than_it_leaves(self) -> None:
        """P19: a principal at its limit is refused with 429, in either way to send a body, and others are served."""
        self.disconnect()
        self.application.owner = "ann"
        ended = self.hold(self.sized(5))
        self.hold(CHUNKED[: CHUNKED.index(b"3\r\n")], b"4\r\nabcd\r\n")
        held = self.connection, self.transport
        for head in (self.sized(1), with_field(b"Expect: 100-continue", self.sized(1))):
            self.transport = self.connect()
            answer = self.send(head)
            self.assertEqual(answer[:13], b"HTTP/1.1 429 ")
            self.assertIn(b"\r\nretry-after: 5\r\n", answer)
            self.assertIn(b"too_many_bodies: ", answer)
            self.disconnect()
        self.application.owner = "bob"
        self.hold(self.sized(4))
        self.connection, self.transport = held
        self.assertEqual(self.send(b"0\r\n\r\n"), b"", "what is whole needs no more room")
        self.application.owner = "ann"
        ended.respond(200, [], b"")
        self.hold(self.sized(1))

    def test_nothing_asked_for(self) -> None:
        """A client is not asked for a body that has no room, nor is one counted that the application does not want."""
        self.assertEqual(self.send(with_field(b"Expect: 100-continue", self.sized(19))), self.NO_ROOM)
        self.disconnect()
        self.application.limit = None
        self.hold(self.sized(19))
        self.application.limit = 100
        self.assert_room(18)


class DeadlineTests(ServerCase):
    """P34: absolute times."""

    def test_idle(self) -> None:
        """A connection with nothing to say is closed, and dropped if that does not work."""
        self.clock.advance(LIMITS.receive_seconds - 1)
        self.assertEqual(self.send(GET), OK)
        self.clock.advance(LIMITS.idle_seconds - 1)
        self.assertFalse(self.transport.disconnecting)
        self.clock.advance(1)
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(self.answer(), b"")
        self.clock.advance(CLOSE_SECONDS)
        self.assertTrue(self.transport.disconnected)

    def test_silent_from_the_start(self) -> None:
        """P34: a connection whose handshake or first request does not come is closed without a word."""
        self.clock.advance(LIMITS.receive_seconds - 1)
        self.assertFalse(self.transport.disconnecting)
        self.clock.advance(1)
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(self.answer(), b"")

    def test_first_request(self) -> None:
        """P34: the first request has its time however late in the connection's own it begins."""
        self.clock.advance(LIMITS.receive_seconds - 1)
        self.assertEqual(self.send(GET[:5]), b"")
        self.clock.advance(LIMITS.receive_seconds - 1)
        self.assertEqual(self.answer(), b"")
        self.clock.advance(1)
        self.refused(408)

    def test_empty_lines_buy_no_time(self) -> None:
        """P34: an empty line moves no deadline, neither a new connection's nor an idle one's nor a request's."""
        for before, seconds in ((b"", LIMITS.receive_seconds), (GET, LIMITS.idle_seconds)):
            for pieces in ((b"\r\n",), (b"\r", b"\n")):
                self.serve(LIMITS)
                self.send(before)
                self.clock.advance(seconds - 1)
                self.assertEqual(self.send(*pieces), b"")
                self.clock.advance(0.5)
                self.assertFalse(self.transport.disconnecting)
                self.clock.advance(0.5)
                self.assertTrue(self.transport.disconnecting)
                self.assertEqual(self.answer(), b"")
                self.disconnect()
        self.serve(LIMITS)
        self.send(GET, b"\r")
        self.clock.advance(20)
        self.send(b"\n")
        self.clock.advance(20)
        self.send(GET[:-1])
        self.clock.advance(29)
        self.assertEqual(self.send(GET[-1:]), OK)
        self.send(b"\r")
        self.clock.advance(LIMITS.receive_seconds)
        self.refused(408)

    def test_head_drip(self) -> None:
        """P34: bytes that trickle do not extend the time for a head."""
        self.assertEqual(self.send(GET), OK)
        self.clock.advance(50)
        for place in range(int(LIMITS.receive_seconds)):
            self.assertEqual(self.send(GET[place : place + 1]), b"")
            self.clock.advance(1)
        self.refused(408)

    def test_body_drip(self) -> None:
        """P34: head and body share one deadline, and the application learns that the request ended."""
        gone: list[bool] = []
        self.application.on_head = lambda exchange: exchange.on_gone(lambda: gone.append(True))
        self.send(CHUNKED[:20])
        self.clock.advance(20)
        self.send(CHUNKED[20:80])
        self.assertEqual(len(self.application.exchanges), 1)
        self.clock.advance(9)
        self.send(CHUNKED[80:81])
        self.assertEqual(gone, [])
        self.clock.advance(1)
        self.assertEqual(gone, [True])
        self.refused(408)
        self.application.exchanges[0].respond(200, [], b"")
        self.assertEqual(self.answer(), b"")

    def test_each_request_has_its_own(self) -> None:
        """The next request's time does not begin before its first byte."""
        for _ in range(5):
            self.send(POST[:30])
            self.clock.advance(29)
            self.assertEqual(self.send(POST[30:]), OK)
            self.clock.advance(20)
        self.assertEqual(self.send(POST[:30]), b"")
        self.clock.advance(29)
        self.assertFalse(self.transport.disconnecting)
        self.clock.advance(1)
        self.refused(408)

    def test_answers_take_as_long_as_they_take(self) -> None:
        """There is no deadline on the application, whatever is sent ahead."""
        self.application.on_body = nothing
        self.send(GET + GET[:5])
        self.clock.advance(3600)
        self.assertFalse(self.transport.disconnecting)
        self.application.exchanges[0].respond(200, [(b"x-a", b"b")], b"hi")
        self.assertEqual(self.answer(), OK)
        self.clock.advance(29)
        self.application.on_body = Recorder().on_body
        self.assertEqual(self.send(GET[5:]), OK)


class BackPressureTests(ServerCase):
    """Clients that read slowly or not at all."""

    def setUp(self) -> None:
        super().setUp()
        self.application.on_body = nothing
        self.said: list[str] = []

    def begin(self) -> IExchange:
        self.send(GET)
        exchange = self.application.exchanges[-1]
        exchange.on_writable(lambda: self.said.append("pause"), lambda: self.said.append("resume"))
        exchange.start(200, [])
        return exchange

    def test_said(self) -> None:
        """The transport's back-pressure reaches whoever writes, also one who asks late."""
        exchange = self.begin()
        self.connection.pauseProducing()
        self.connection.resumeProducing()
        self.connection.pauseProducing()
        self.assertEqual(self.said, ["pause", "resume", "pause"])
        exchange.on_writable(lambda: self.said.append("again"), lambda: self.said.append("resume"))
        self.assertEqual(self.said[3:], ["again"])

    def test_stalled(self) -> None:
        """P34: a client that leaves its answer unread for long enough is dropped."""
        gone: list[bool] = []
        self.begin().on_gone(lambda: gone.append(True))
        for _ in range(3):
            self.connection.pauseProducing()
            self.clock.advance(LIMITS.write_stall_seconds - 1)
            self.connection.resumeProducing()
            self.clock.advance(1000)
        self.assertFalse(self.transport.disconnected)
        self.connection.pauseProducing()
        self.clock.advance(LIMITS.write_stall_seconds)
        self.assertTrue(self.transport.disconnected)
        self.disconnect()
        self.assertEqual(gone, [True])

    def test_unread_answers_hold_back_requests(self) -> None:
        """A client that sends and never reads does not make answers pile up."""
        self.begin()
        self.connection.pauseProducing()
        self.application.exchanges[0].finish()
        self.send(GET, GET)
        self.assertEqual(len(self.application.exchanges), 1)
        self.clock.advance(LIMITS.write_stall_seconds - 1)
        self.connection.resumeProducing()
        self.assertEqual(len(self.application.exchanges), 2)

    def test_stalled_with_a_request_half_sent(self) -> None:
        """After a pause the deadline of the request that is being received still stands."""
        self.begin().finish()
        self.answer()
        self.send(POST[:10])
        self.clock.advance(20)
        self.connection.pauseProducing()
        self.clock.advance(5)
        self.connection.resumeProducing()
        self.clock.advance(5)
        self.refused(408)


class GoneTests(ServerCase):
    """Clients that go away."""

    def setUp(self) -> None:
        super().setUp()
        self.application.on_body = nothing
        self.gone: list[int] = []

    def test_before_and_during_the_answer(self) -> None:
        """The application is told once, and what it still says is dropped."""
        for begun in (False, True):
            self.transport = self.connect()
            self.send(GET)
            exchange = self.application.exchanges[-1]
            exchange.on_gone(lambda: self.gone.append(1))
            if begun:
                exchange.start(200, [])
            self.answer()
            self.disconnect()
            self.assertEqual(self.gone, [1])
            exchange.start(200, [])
            exchange.write(b"x")
            exchange.finish()
            exchange.respond(200, [], b"")
            exchange.abort()
            self.assertEqual(self.answer(), b"")
            self.assertFalse(self.transport.disconnected)
            exchange.on_gone(lambda: self.gone.append(2))
            self.assertEqual(self.gone, [1, 2])
            self.gone.clear()

    def test_while_receiving(self) -> None:
        """A client that leaves in the middle of its body."""
        self.send(POST[:-1])
        self.application.exchanges[0].on_gone(lambda: self.gone.append(1))
        self.disconnect()
        self.assertEqual(self.gone, [1])

    def test_after_the_answer(self) -> None:
        """Nobody is told when everything was said."""
        self.send(GET)
        exchange = self.application.exchanges[0]
        exchange.on_gone(lambda: self.gone.append(1))
        exchange.respond(200, [], b"")
        self.disconnect()
        self.assertEqual(self.gone, [])

    def test_abort(self) -> None:
        """P33: an answer that cannot be completed ends without its last chunk, behind everything that was written."""
        self.send(GET + GET)
        exchange = self.application.exchanges[0]
        exchange.start(200, [])
        exchange.write(b"half")
        exchange.abort()
        self.assertTrue(self.transport.disconnecting)
        self.assertFalse(self.transport.disconnected)
        self.assertTrue(self.answer().endswith(b"\r\n\r\n4\r\nhalf\r\n"))
        self.disconnect()
        self.assertEqual(len(self.application.exchanges), 1)

    def test_abort_of_what_has_no_chunks(self) -> None:
        """Where no last chunk can be missing, a reset tells the client that the answer is not whole."""
        for request, status in ((HEAD, 200), (GET, 204)):
            for begun in (False, True):
                self.serve(LIMITS)
                self.application.on_body = nothing
                self.send(request)
                exchange = self.application.exchanges[-1]
                if begun:
                    exchange.start(status, [])
                exchange.abort()
                self.assertTrue(self.transport.disconnected, (status, begun))
                self.disconnect()


class ApplicationFailureTests(ServerCase):
    """Mistakes of the application."""

    def fail_with(self, error: Exception) -> Callable[[IExchange], None]:
        def fail(exchange: IExchange) -> None:
            raise error

        return fail

    def test_refusals(self) -> None:
        """A ``BadHttp`` is an answer, from head and body alike."""
        self.application.on_head = self.fail_with(BadHttp(418, "short and stout"))
        self.refused(418, GET)
        self.serve(LIMITS)
        self.application.on_body = self.fail_with(BadHttp(418, "short and stout"))
        self.refused(418, POST)

    def test_bugs(self) -> None:
        """P25: anything else is logged and answered with 500, which says nothing about it."""
        for hook in ("on_head", "on_body"):
            self.serve(LIMITS)
            setattr(self.application, hook, self.fail_with(ZeroDivisionError("canary")))
            answer = self.send(POST)
            self.assertTrue(answer.startswith(b"HTTP/1.1 500 "))
            self.assertNotIn(b"canary", answer)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assert_lingers()

    def test_after_the_answer_began(self) -> None:
        """Nothing is sent into or after an answer that was begun: the connection is closed."""

        def begin(exchange: IExchange) -> None:
            exchange.start(200, [])
            raise BadHttp(400, "too late")

        def answer(exchange: IExchange) -> None:
            exchange.respond(200, [], b"")
            raise BadHttp(400, "too late")

        for fail in (begin, answer):
            for hook in ("on_head", "on_body"):
                self.serve(LIMITS)
                setattr(self.application, hook, fail)
                sent = self.send(GET + GET)
                self.assertEqual(sent.count(b"HTTP/1.1"), 1)
                self.assertNotIn(b"\r\n0\r\n", sent)
                self.assertTrue(self.transport.disconnecting)
                self.disconnect()


class DrainTests(ServerCase):
    """Going away in order."""

    def test_drain(self) -> None:
        """Idle connections close at once, busy ones after their answer, and no new ones are taken."""
        self.application.on_body = nothing
        idle, idle_connection = self.transport, self.connection
        busy, busy_connection = self.connect(), self.connection
        busy_connection.dataReceived(GET)
        half, half_connection = self.connect(), self.connection
        half_connection.dataReceived(POST[:10])
        drained = self.factory.drain()
        self.assertEqual([t.disconnecting for t in (idle, busy, half)], [True, False, False])
        self.assertTrue(self.connect().disconnected)
        self.application.exchanges[0].respond(200, [], b"")
        self.assertIn(b"connection: close\r\n", busy.take())
        half_connection.dataReceived(POST[10:])
        self.application.exchanges[1].start(200, [])
        self.application.exchanges[1].finish()
        self.assertIn(b"connection: close\r\n", half.take())
        self.assertEqual([t.disconnecting for t in (idle, busy, half)], [True, True, True])
        self.assertNoResult(drained)
        for connection in (idle_connection, busy_connection, half_connection):
            connection.connectionLost(Failure(ConnectionDone()))
        self.assertIsNone(self.successResultOf(drained))
        self.assertIsNone(self.successResultOf(self.factory.drain()))

    def test_the_last_client_goes(self) -> None:
        """When draining is over, every application knows that its client is gone."""
        self.application.on_body = nothing
        self.send(GET)
        told: list[str] = []
        self.application.exchanges[0].on_gone(lambda: told.append("gone"))
        self.factory.drain().addCallback(lambda _: told.append("drained"))
        self.disconnect()
        self.assertEqual(told, ["gone", "drained"])

    def test_streaming_ends_first(self) -> None:
        """An answer that is under way when draining begins is sent whole, then the connection closes."""
        self.application.on_body = nothing
        self.send(GET)
        self.application.exchanges[0].start(200, [])
        self.factory.drain()
        self.assertFalse(self.transport.disconnecting)
        self.application.exchanges[0].finish()
        self.assertTrue(self.transport.disconnecting)
