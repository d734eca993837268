"""One client's HTTP/1.1 connection: strict, bounded, streaming, and without a Deferred on the way.

What the transport says, which deadline is running, and how the connection ends. Heads and bodies are read in
:mod:`iop.net.request_head` and :mod:`iop.net.request_body`, answers written in :mod:`iop.net.http_exchange`. One
request at a time is in the application's hands; what a client sends ahead stays bytes until its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from zope.interface import implementer

from iop.errors import BadHttp
from iop.net.body_room import Reservation
from iop.net.deadline import Deadline
from iop.net.http_exchange import Exchange
from iop.net.http_refusal import refusal_answer
from iop.net.request_body import ChunkedBody, SizedBody
from iop.net.request_head import HeadReader

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from iop.interfaces import IClock
    from iop.net.head_rules import Framing
    from iop.net.http1 import HttpServerFactory
    from iop.net.http_application import HttpLimits, IHttpApplication, RequestHead, Wanted
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


class _Phase(Enum):
    HEAD = "waiting for a request, or reading its head"
    BODY = "reading its body"
    ANSWER = "the request is whole, the answer is not"
    DEAF = "nothing that still comes is read"


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
        self._heads = HeadReader(limits)
        self._receiving: tuple[Exchange, Wanted, SizedBody | ChunkedBody] | None = None
        #: When the first byte came of the request that is being received or answered.
        self._began: float | None = None
        #: Until when there need be no request.
        self._idle_until = 0.0
        self._exchange: Exchange | None = None
        #: The room of the exchange's body, if that is being received or was.
        self._room: Reservation | None = None
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
        if not isinstance(self.transport.getHost(), UNIXAddress):
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
        if self._room is not None:
            self._room.give_back()
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
        self._server.idle(self)
        self._exchange = None
        self._began = None
        if self._room is not None:
            self._room.give_back()
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

    def cut(self) -> None:
        """Close behind what was sent of an answer that ends unfinished. A reset would take back what is under way."""
        self._close(linger=False)

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
            while self._input and not self.blocked:
                if self._phase is _Phase.HEAD:
                    size, request = self._heads.read(self._input)
                    if not size:
                        break
                    self._input = self._input[size:]
                    if request is None:
                        # an empty line neither begins a request's time nor extends the connection's
                        self._began = None
                    else:
                        self._begin_request(*request)
                elif self._receiving is None or not self._read_body(*self._receiving):
                    break
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

    def _begin_request(self, head: RequestHead, framing: Framing) -> None:
        """Let the application judge the head, and get ready for the body."""
        exchange = Exchange(self, head)
        self._exchange = exchange
        self._last = framing.closes
        self._phase = _Phase.ANSWER if framing.length == 0 else _Phase.BODY
        wanted = self._ask(exchange, self._application.headed, exchange)
        if not exchange.may_answer():
            return
        if wanted is None or wanted.owner is not None or framing.length == 0:
            self._server.busy(self)
        if wanted is None:
            if self._phase is _Phase.BODY:
                self._stop_reading()
        elif framing.length == 0:
            self._ask(exchange, wanted.take, bytearray())
        else:
            self._expect_body(exchange, framing, wanted)

    def _expect_body(self, exchange: Exchange, framing: Framing, wanted: Wanted) -> None:
        limit = min(wanted.limit, self._limits.body)
        room = self._room = Reservation(self._server.body_room, wanted.owner)
        if framing.length is None:
            self._receiving = exchange, wanted, ChunkedBody(limit, room.take)
        elif framing.length > limit:
            raise BadHttp(413, f"the body is larger than {limit} bytes")
        else:
            room.take(framing.length)
            self._receiving = exchange, wanted, SizedBody(framing.length)
        if framing.waits and not self._input:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self, exchange: Exchange, wanted: Wanted, body: SizedBody | ChunkedBody) -> bool:
        """Read on in a body, and hand it over once it is whole. Answers whether it was."""
        self._input = body.feed(self._input)
        if body.whole:
            self._phase = _Phase.ANSWER
            self._receiving = None
            self._server.busy(self)
            self._ask(exchange, wanted.take, body.content)
        return body.whole

    def _ask(self, exchange: Exchange, question: Callable[[A], T], about: A) -> T | None:
        """Call the application; what it raises is its answer."""
        try:
            return question(about)
        except BadHttp as refusal:
            self._refuse(refusal, exchange)
        except Exception:  # noqa: BLE001 - the application's own mistake: logged, and answered with 500
            _log.failure("net.http.application_failed")
            self._refuse(BadHttp(500, "something went wrong here"), exchange)
        return None

    # -- ending ----------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: BadHttp, exchange: Exchange | None) -> None:
        """Answer for the application, and close: what still comes cannot be told apart any more."""
        if exchange is None or exchange.may_answer():
            head, body = refusal_answer(self._application, refusal)
            if exchange is not None and exchange.head.method == "HEAD":
                body = b""
            self._stop_reading()
            self.begin(head, body)
            self._exchange = None
            self._close(linger=True)
        else:
            exchange.abort()
            if not self._closing:
                # it broke after its answer was whole
                self.cut()
        if exchange is not None:
            exchange.end()
        if self._room is not None:
            self._room.give_back()

    def _stop_reading(self) -> None:
        """Drop what came, and whatever will come."""
        self._phase = _Phase.DEAF
        self._input = b""
        self._receiving = None

    def _close(self, *, linger: bool) -> None:
        """Close once everything is sent.

        :param linger: whether the client may still be sending. Closing over unread bytes resets the connection, and a
            reset can overtake the answer; so first they are read and dropped for a while.
        """
        self._closing = True
        self._server.idle(self)
        self._stop_reading()
        self.transport.unregisterProducer()
        # also where nobody lingers: TLS ends with the client's goodbye, which has to be read
        self.transport.resumeProducing()
        if linger:
            self._lingering = True
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
