"""One client's HTTP/1.1 connection: strict, bounded, streaming, and without a Deferred on the way.

llhttp reads the heads, with none of its leniencies. It never gets a byte beyond the head it reads, so what a client
sends ahead stays bytes until its turn comes, and one request at a time is in the application's hands.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from zope.interface import implementer

from iop.errors import BadHttp
from iop.net.deadline import Deadline
from iop.net.head_rules import Framing, framing_of
from iop.net.http_application import Headers, HttpLimits, IExchange, IHttpApplication, RequestHead, Wanted
from iop.net.request_body import ChunkedBody, SizedBody
from iop.net.response_head import response_head

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from iop.interfaces import IClock
    from iop.net.http1 import HttpServerFactory
    from iop.net.transport import IStreamTransport

_log = Logger()
A = TypeVar("A")
T = TypeVar("T")

#: Bytes that a client may send ahead while its request is answered; beyond, nothing more is read.
SENT_AHEAD: Final = 64 * 1024
#: How long bytes are still read and dropped after a refusal, so that the client gets to read it.
LINGER_SECONDS: Final = 2.0
#: How long a client may take to read the last of an answer and, under TLS, to say goodbye.
CLOSE_SECONDS: Final = 10.0
#: When a client may try again whose body found no room.
RETRY_SECONDS: Final = 5

#: Statuses whose answers have no body (RFC 9110, 15.3.5 and 15.4.5).
_BODILESS: Final = frozenset({204, 304})
_CODES: Final = {
    408: "request_timeout",
    413: "request_too_large",
    415: "content_encoding_refused",
    417: "expectation_failed",
    431: "headers_too_large",
    500: "internal",
    503: "overloaded",
    504: "call_timeout",
    505: "http_version_unsupported",
}
_OTHERWISE: Final = "bad_request"
#: Every code of what the server answers on its own.
REFUSAL_CODES: Final = frozenset({*_CODES.values(), _OTHERWISE})


class _Phase(Enum):
    HEAD = "waiting for a request, or reading its head"
    BODY = "reading its body"
    ANSWER = "the request is whole, the answer is not"
    DEAF = "nothing that still comes is read"


class _Answer(Enum):
    FRESH = "not begun"
    STREAMING = "begun"
    OVER = "ended"
    GONE = "the client is gone, or was refused"


class _HeadFields:
    """What llhttp finds in one head."""

    __slots__ = ("fields", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []

    def on_url(self, piece: bytes) -> None:
        self.target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.rstrip(b" \t")))


@implementer(IExchange)
class Exchange:
    """The exchange that a :class:`HttpConnection` is busy with."""

    __slots__ = ("_answer", "_bodiless", "_connection", "_gone", "_pause", "_resume", "head")

    def __init__(self, connection: HttpConnection, head: RequestHead) -> None:
        self.head = head
        self._connection = connection
        self._answer = _Answer.FRESH
        self._bodiless = head.method == "HEAD"
        self._gone: Callable[[], object] | None = None
        self._pause: Callable[[], object] | None = None
        self._resume: Callable[[], object] | None = None

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        if self._passes(_Answer.FRESH):
            head = response_head(status, headers)
            if status not in _BODILESS:
                head += b"content-length: %d\r\n" % len(body)
            if status in _BODILESS or self._bodiless:
                body = b""
            self._answer = _Answer.OVER
            self._connection.begin(head, body)
            self._connection.answered()

    def start(self, status: int, headers: Headers) -> None:
        if self._passes(_Answer.FRESH):
            head = response_head(status, headers)
            if status in _BODILESS:
                self._bodiless = True
            else:
                head += b"transfer-encoding: chunked\r\n"
            self._answer = _Answer.STREAMING
            self._connection.begin(head, b"")

    def write(self, data: bytes) -> None:
        if self._passes(_Answer.STREAMING) and data and not self._bodiless:
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> None:
        if self._passes(_Answer.STREAMING):
            if not self._bodiless:
                self._connection.transport.write(b"0\r\n\r\n")
            self._answer = _Answer.OVER
            self._connection.answered()

    def abort(self) -> None:
        if self._answer in (_Answer.FRESH, _Answer.STREAMING):
            self._connection.abort()

    def on_gone(self, callback: Callable[[], object]) -> None:
        if self._answer is _Answer.GONE:
            callback()
        else:
            self._gone = callback

    def on_writable(self, pause: Callable[[], object], resume: Callable[[], object]) -> None:
        self._pause, self._resume = pause, resume
        if self._connection.blocked:
            pause()

    def may_answer(self) -> bool:
        """Whether nothing of the answer was sent."""
        return self._answer is _Answer.FRESH

    def end(self) -> None:
        """The client is gone, or got its answer from elsewhere."""
        if self._answer in (_Answer.FRESH, _Answer.STREAMING):
            self._answer = _Answer.GONE
            if self._gone is not None:
                self._gone()

    def pause(self) -> None:
        """The client does not keep up."""
        if self._pause is not None:
            self._pause()

    def resume(self) -> None:
        """The client caught up."""
        if self._resume is not None:
            self._resume()

    def _passes(self, needed: _Answer) -> bool:
        """Whether the client is there; raises if the application does things in the wrong order."""
        if self._answer is not needed and self._answer is not _Answer.GONE:
            raise RuntimeError(f"the answer is {self._answer.value}, which is no time for this")
        return self._answer is needed


@implementer(IPushProducer)
class HttpConnection(Protocol):
    """One client's connection."""

    transport: IStreamTransport

    def __init__(
        self, server: HttpServerFactory, application: IHttpApplication, clock: IClock, limits: HttpLimits
    ) -> None:
        self._server = server
        self._application = application
        self._clock = clock
        self._limits = limits
        self._deadline = Deadline(clock, self._expired)
        #: What came and was not consumed yet.
        self._input = b""
        self._phase = _Phase.HEAD
        self._parser: HttpRequestParser | None = None
        self._found = _HeadFields()
        self._parsed = 0
        #: Whether an empty line before the next request was ignored.
        self._blank = False
        self._receiving: tuple[Exchange, Wanted, SizedBody | ChunkedBody] | None = None
        #: When the first byte came of the request that is being received or answered.
        self._began: float | None = None
        #: Until when there need be no request.
        self._idle_until = 0.0
        self._exchange: Exchange | None = None
        #: Bytes of the exchange's body that count towards the listener's total.
        self._reserved = 0
        #: Whether the connection closes after the answer.
        self._last = False
        #: Whether the transport holds more of the answer than the client takes.
        self.blocked = False
        self._held = False
        self._running = False
        self._closing = False
        self._lingering = False

    # -- what the transport says -----------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        if not self._server.opened(self):
            self.abort()
            return
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        # under TLS the handshake is still to come
        self._idle_until = self._clock.boot() + self._limits.receive_seconds
        self._deadline.set(self._idle_until)

    def dataReceived(self, data: bytes) -> None:
        if self._phase is _Phase.DEAF:
            return
        self._input = self._input + data if self._input else data
        if self._phase is not _Phase.ANSWER and not self.blocked:
            self._run()
        elif len(self._input) > SENT_AHEAD:
            self._held = True
            self.transport.pauseProducing()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self._stop_reading()
        self._deadline.stop()
        # whoever waits for the last connection must not find a request that does not know yet
        if self._exchange is not None:
            self._exchange.end()
        self._give_back()
        self._server.closed(self)

    def pauseProducing(self) -> None:
        """The client reads more slowly than its answer comes."""
        self.blocked = True
        self._deadline.set(self._clock.boot() + self._limits.write_stall_seconds)
        if self._exchange is not None:
            self._exchange.pause()

    def resumeProducing(self) -> None:
        """The client has read all there was."""
        self.blocked = False
        self._idle_until = self._clock.boot() + self._limits.idle_seconds
        if self._exchange is not None:
            self._exchange.resume()
        self._run()

    def stopProducing(self) -> None:
        """The connection is lost; :meth:`connectionLost` does what there is to do."""

    # -- what an exchange says -------------------------------------------------------------------------------------

    def begin(self, head: bytes, body: bytes) -> None:
        """Send the head of an answer, and the body if there is one already."""
        if self._phase is _Phase.BODY:
            self._stop_reading()
        if self._phase is _Phase.DEAF or self._server.draining:
            self._last = True
        closing = b"connection: close\r\n" if self._last else b""
        self.transport.write(b"%bdate: %b\r\n%b\r\n%b" % (head, self._server.date(), closing, body))

    def answered(self) -> None:
        """The answer is sent: on to the next request, or to the end."""
        self._exchange = None
        self._began = None
        self._give_back()
        if self._last or self._server.draining:
            self._close(linger=self._phase is _Phase.DEAF)
        else:
            self._phase = _Phase.HEAD
            self._idle_until = self._clock.boot() + self._limits.idle_seconds
            self._run()

    def abort(self) -> None:
        """Drop the connection with whatever is still to be sent."""
        self._closing = True
        self._stop_reading()
        self.transport.abortConnection()

    def drain(self) -> None:
        """Close now if nothing of a request is here; otherwise the answer's end closes."""
        if self._idle():
            self._close(linger=False)

    # -- receiving -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Read what can be acted upon now. Safe to call from within itself: an application may answer at once."""
        if self._running or self._closing:
            return
        self._running = True
        try:
            more = True
            while more and self._input and not self.blocked:
                if self._phase is _Phase.HEAD:
                    more = self._read_head()
                elif self._receiving is not None:
                    more = self._read_body(*self._receiving)
                else:
                    more = False
        except BadHttp as refusal:
            self._refuse(refusal, self._exchange)
        finally:
            self._running = False
        if self._held and len(self._input) <= SENT_AHEAD:
            self._held = False
            self.transport.resumeProducing()
        self._set_deadline()

    def _idle(self) -> bool:
        return self._phase is _Phase.HEAD and not self._input

    def _set_deadline(self) -> None:
        if self._closing or self.blocked:
            return
        if self._idle():
            self._deadline.set(self._idle_until)
            return
        if self._began is None:
            self._began = self._clock.boot()
        receiving = self._phase in (_Phase.HEAD, _Phase.BODY)
        seconds = self._limits.receive_seconds if receiving else self._limits.call_seconds
        if seconds is None:
            self._deadline.clear()
        else:
            self._deadline.set(self._began + seconds)

    def _read_head(self) -> bool:
        """Read on in a head, and begin its request once it is whole. Answers whether there may be more to read."""
        if self._parser is None and self._input[:1] in (b"\r", b"\n"):
            return self._ignore_empty_line()
        if self._parser is None:
            self._found = _HeadFields()
            self._parser = HttpRequestParser(self._found)
        end = self._input.find(b"\r\n\r\n", max(self._parsed - 3, 0))
        stop = len(self._input) if end < 0 else end + 4
        if stop > self._limits.headers:
            raise BadHttp(431, f"the request's head is larger than {self._limits.headers} bytes")
        try:
            self._parser.feed_data(self._input[self._parsed : stop])
        except HttpParserUpgrade:
            raise BadHttp(400, "this server does not switch protocols") from None
        except HttpParserError:
            raise BadHttp(400, "the request's head is not HTTP/1.1") from None
        self._parsed = stop
        if end < 0:
            return False
        raw = self._input[:stop]
        self._input = self._input[stop:]
        self._begin_request(raw, self._parser, self._found)
        return True

    def _ignore_empty_line(self) -> bool:
        """Drop one empty line before a request (RFC 9112, 2.2). Answers whether it was there whole."""
        if self._blank or not b"\r\n".startswith(self._input[:2]):
            raise BadHttp(400, "the request begins with an empty line")
        if len(self._input) < 2:
            return False
        self._input = self._input[2:]
        self._blank = True
        # it belongs to no request, so that it neither begins one's time nor extends the connection's
        self._began = None
        return True

    def _begin_request(self, raw: bytes, parser: HttpRequestParser, found: _HeadFields) -> None:
        """Check the head, let the application judge it, and get ready for the body."""
        if len(found.fields) > self._limits.header_count:
            raise BadHttp(431, f"the request has more than {self._limits.header_count} header fields")
        method = parser.get_method()
        if not raw.startswith(b"%b %b HTTP/1.1\r\n" % (method, found.target)):
            if parser.get_http_version() != "1.1":
                raise BadHttp(505, "this server speaks HTTP/1.1 only")
            raise BadHttp(400, "the request line is not a method, a target and HTTP/1.1")
        if not found.target.startswith(b"/") or b"#" in found.target:
            raise BadHttp(400, "the request's target is not a path")
        framing = framing_of(found.fields)
        path, _, query = found.target.decode("ascii").partition("?")
        exchange = Exchange(self, RequestHead(method.decode("ascii"), path, query, tuple(found.fields)))
        self._parser = None
        self._parsed = 0
        self._blank = False
        self._exchange = exchange
        self._last = framing.closes
        self._phase = _Phase.ANSWER if framing.length == 0 else _Phase.BODY
        wanted = self._ask(exchange, self._application.headed, exchange)
        if not exchange.may_answer():
            return
        if wanted is None:
            if self._phase is _Phase.BODY:
                self._stop_reading()
        elif framing.length == 0:
            self._ask(exchange, wanted.take, bytearray())
        else:
            self._expect_body(exchange, framing, wanted)

    def _expect_body(self, exchange: Exchange, framing: Framing, wanted: Wanted) -> None:
        limit = min(wanted.limit, self._limits.body)
        if framing.length is None:
            self._receiving = exchange, wanted, ChunkedBody(limit, self._reserve)
        elif framing.length > limit:
            raise BadHttp(413, f"the body is larger than {limit} bytes")
        else:
            self._reserve(framing.length)
            self._receiving = exchange, wanted, SizedBody(framing.length)
        if framing.waits and not self._input:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _reserve(self, count: int) -> None:
        """Have ``count`` more bytes of the body count towards the listener's total, until the exchange ends."""
        if not self._server.reserve(count):
            raise BadHttp(503, "this server holds as many request bodies as it can; try again soon")
        self._reserved += count

    def _give_back(self) -> None:
        self._server.give_back(self._reserved)
        self._reserved = 0

    def _read_body(self, exchange: Exchange, wanted: Wanted, body: SizedBody | ChunkedBody) -> bool:
        """Read on in a body, and hand it over once it is whole. Answers whether it was."""
        self._input = body.feed(self._input)
        if body.whole:
            self._phase = _Phase.ANSWER
            self._receiving = None
            self._ask(exchange, wanted.take, body.content)
        return body.whole

    def _ask(self, exchange: Exchange, question: Callable[[A], T], about: A) -> T | None:
        """Call the application; what it raises is its answer."""
        try:
            return question(about)
        except BadHttp as refusal:
            self._refuse(refusal, exchange)
        except Exception:  # noqa: BLE001 - the application's own mistake: logged, and answered with 500
            _log.failure("a request could not be answered")
            self._refuse(BadHttp(500, "something went wrong here"), exchange)
        return None

    # -- ending ----------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: BadHttp, exchange: Exchange | None) -> None:
        """Answer for the application, and close: what still comes cannot be told apart any more."""
        if exchange is None or exchange.may_answer():
            code = _CODES.get(refusal.status, _OTHERWISE)
            headers, body = self._application.refuse(refusal.status, code, refusal.message)
            if refusal.status == 503:
                headers = [*headers, (b"retry-after", b"%d" % RETRY_SECONDS)]
            head = response_head(refusal.status, headers) + b"content-length: %d\r\n" % len(body)
            if exchange is not None and exchange.head.method == "HEAD":
                body = b""
            self._stop_reading()
            self.begin(head, body)
            self._exchange = None
            self._close(linger=True)
        else:
            self.abort()
        if exchange is not None:
            exchange.end()
        self._give_back()

    def _stop_reading(self) -> None:
        """Drop what came, and whatever will come."""
        self._phase = _Phase.DEAF
        self._input = b""
        self._parser = None
        self._receiving = None

    def _close(self, *, linger: bool) -> None:
        """Close once everything is sent.

        :param linger: whether the client may still be sending. Closing over unread bytes resets the connection, and a
            reset can overtake the answer; so first they are read and dropped for a while.
        """
        self._closing = True
        self._stop_reading()
        self.transport.unregisterProducer()
        if linger:
            self._lingering = True
            self.transport.resumeProducing()
            self._deadline.set(self._clock.boot() + LINGER_SECONDS)
        else:
            self._lose()

    def _lose(self) -> None:
        self._lingering = False
        self._deadline.set(self._clock.boot() + (self._limits.write_stall_seconds if self.blocked else CLOSE_SECONDS))
        self.transport.loseConnection()

    def _expired(self) -> None:
        if self._lingering:
            self._lose()
        elif self._closing or self.blocked:
            self.transport.abortConnection()
        elif self._idle():
            self._close(linger=False)
        elif self._phase in (_Phase.HEAD, _Phase.BODY):
            self._refuse(BadHttp(408, "the request did not arrive in time"), self._exchange)
        else:
            self._refuse(BadHttp(504, "the call took too long, and what became of it is unknown"), self._exchange)
