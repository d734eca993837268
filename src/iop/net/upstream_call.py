"""One exchange with an upstream, and the connection that carries it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from zope.interface import Attribute, Interface, implementer

from iop.errors import BadHttp, UpstreamBroke, UpstreamFailed, UpstreamLate, UpstreamTimedOut, UpstreamTls
from iop.net.deadline import Deadline
from iop.net.response_reader import ResponseReader
from iop.net.target import is_loopback

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IAddress, IProtocol, IStreamClientEndpoint
    from twisted.python.failure import Failure

    from iop.net.transport import IStreamTransport
    from iop.net.upstream import Upstream


class IUpstreamReceiver(Interface):
    """What takes the answer to one call. After ``finished``, ``failed`` or its own ``cancel`` it hears nothing more."""

    def head(status: int, headers: Sequence[tuple[str, str]]) -> None:
        """The final status, and the fields with lower-case names, as Latin-1. Interim answers are not seen."""

    def data(data: bytes) -> None:
        """Bytes of the answer's body, without the transfer coding."""

    def finished() -> None:
        """The answer is whole."""

    def failed(reason: UpstreamFailed) -> None:
        """There will be no (whole) answer. May come before :meth:`IUpstream.call` returns."""

    def writable() -> None:
        """Everything written so far is on its way; may come from within ``write``."""


class IUpstreamCall(Interface):
    """One call under way. Once it is over, every method does nothing."""

    started: bool = Attribute("Whether a byte of the request was sent, or may have been; after a cancel none will be.")

    def write(piece: bytes) -> None:
        """Send the next bytes of the request's body; kept until there is a connection.

        :raises RuntimeError: for more bytes than were announced.
        """

    def pause() -> None:
        """Read no more of the answer for now."""

    def resume() -> None:
        """Read on."""

    def cancel() -> None:
        """End the call and close its connection at once."""


class _Stage(Enum):
    DIALLING = "no connection is ready"
    UNDER_WAY = "the request's head was sent"
    OVER = "finished, failed or cancelled"


@implementer(IUpstreamCall)
class UpstreamCall:
    """One exchange with an upstream; made by :class:`Upstream`.

    :param head: the request's head, which may hold a credential; it is zeroed once it is sent or of no more use.
    :param start_by: boot time in seconds from which on it is too late to send it.
    """

    def __init__(
        self, upstream: Upstream, head: bytearray, body_length: int, receiver: IUpstreamReceiver, start_by: float
    ) -> None:
        self._upstream = upstream
        self._receiver = receiver
        self.started = False
        #: What is to be sent once there is a connection.
        self._unsent = head
        self._missing = body_length
        self._owes_word = False
        self._stage = _Stage.DIALLING
        self._dialling: Deferred[IProtocol] | None = None
        self._connection: UpstreamConnection | None = None
        self._reader = ResponseReader(upstream.limits.response_head)
        self._headed = False
        self._paused = False
        self._deadline = Deadline(upstream.clock, self._expired)
        self._start_by = start_by
        self._start_deadline = Deadline(upstream.clock, self._too_late)

    # -- IUpstreamCall ---------------------------------------------------------------------------------------------

    def write(self, piece: bytes) -> None:
        if self.is_over():
            return
        if len(piece) > self._missing:
            raise RuntimeError("more of a request's body was written than was announced")
        self._missing -= len(piece)
        self._owes_word = True
        if self._stage is _Stage.UNDER_WAY and self._connection is not None:
            self._connection.transport.write(piece)
            self.drained()
        else:
            self._unsent += piece

    def pause(self) -> None:
        if self._stage is _Stage.UNDER_WAY and self._connection is not None and not self._paused:
            self._paused = True
            self._wait_for_body()
            self._connection.transport.pauseProducing()

    def resume(self) -> None:
        if self._stage is _Stage.UNDER_WAY and self._connection is not None and self._paused:
            self._paused = False
            self._wait_for_body()
            self._connection.transport.resumeProducing()

    def cancel(self) -> None:
        if not self.is_over():
            self._end()

    # -- on the way to a connection --------------------------------------------------------------------------------

    def dial(self, endpoint: IStreamClientEndpoint) -> None:
        """Get a connection of this call's own."""
        self._wait(self._upstream.limits.connect_seconds)
        if self._start_by < inf:
            self._start_deadline.set(self._start_by)
        self._dialling = endpoint.connect(_OneConnection(self._upstream, self))
        self._dialling.addErrback(self._unreachable)

    def connected(self, connection: UpstreamConnection) -> bool:
        """A connection was made, which may have to be made ready; answers whether it is wanted."""
        if self.is_over() or self._connection is not None:
            return False
        self._dialling = None
        self._connection = connection
        return True

    def begin(self, transport: IStreamTransport) -> None:
        """The connection is ready: send what there is, unless it is too late for that, as it may be before a timer."""
        if self._upstream.clock.boot() >= self._start_by:
            self._too_late()
            return
        self._start_deadline.stop()
        self._stage = _Stage.UNDER_WAY
        self.started = True
        self._wait(self._upstream.limits.first_byte_seconds)
        transport.write(bytes(self._unsent))
        self._zero()
        self.drained()

    def _unreachable(self, failure: Failure) -> None:
        self.fail(UpstreamFailed("the upstream could not be reached", started=False))

    # -- what the connection says ----------------------------------------------------------------------------------

    def drained(self) -> None:
        """Say so if everything written is on its way."""
        if self._owes_word and self._connection is not None and not self._connection.blocked:
            self._owes_word = False
            self._receiver.writable()

    def received(self, data: bytes) -> None:
        """Take bytes of the answer."""
        reader = self._reader
        try:
            reader.feed(data)
        except BadHttp as error:
            self.fail(UpstreamBroke(error.message, started=True))
            return
        if reader.status is None:
            return
        self._wait_for_body()
        if not self._headed:
            self._headed = True
            self._receiver.head(reader.status, reader.headers)
        body = reader.take_body()
        if body and not self.is_over():
            self._receiver.data(body)
        if reader.whole and not self.is_over():
            self._finish()

    def lost(self, reason: Failure) -> None:
        """The connection ended."""
        self._connection = None
        if self._stage is _Stage.DIALLING:
            self.fail(UpstreamTls("the upstream could not be authenticated", started=False))
        elif reason.check(ConnectionDone) and self._reader.ended():
            self._end()
            self._receiver.finished()
        else:
            self.fail(UpstreamBroke("the upstream ended the connection before its answer was whole", started=True))

    # -- ends ------------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Whether the receiver hears nothing more."""
        return self._stage is _Stage.OVER

    def fail(self, reason: UpstreamFailed) -> None:
        """End the call with ``reason``, if it is not over."""
        if not self.is_over():
            self._end()
            self._receiver.failed(reason)

    def _finish(self) -> None:
        """The answer is whole: give the connection back if nothing is left on it in either direction."""
        connection, self._connection = self._connection, None
        reusable = self._reader.reusable and not self._missing
        paused = self._paused
        self._end()
        if connection is not None:
            if paused:
                connection.transport.resumeProducing()
            connection.release(reusable=reusable and not connection.blocked)
        self._receiver.finished()

    def _end(self) -> None:
        """Let go of everything; a connection that is still held is dropped, with whatever is on it."""
        self._stage = _Stage.OVER
        self._deadline.stop()
        self._start_deadline.stop()
        self._reader.release()
        self._zero()
        self._upstream.gave_up(self)
        dialling, self._dialling = self._dialling, None
        if dialling is not None:
            dialling.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _zero(self) -> None:
        self._unsent[:] = bytes(len(self._unsent))
        self._unsent.clear()

    def _wait(self, seconds: float) -> None:
        self._deadline.set(self._upstream.clock.boot() + seconds)

    def _wait_for_body(self) -> None:
        """Begin anew to wait for bytes, if they are wanted; until the head is whole its own deadline stands (P34)."""
        if self._paused and self._reader.status is not None:
            self._deadline.clear()
        elif self._reader.status is not None:
            self._wait(self._upstream.limits.between_bytes_seconds)

    def _too_late(self) -> None:
        self.fail(UpstreamLate("the upstream was not ready in time for the request", started=False))

    def _expired(self) -> None:
        self.fail(UpstreamTimedOut("the upstream took too long", started=self.started))


@implementer(IHandshakeListener, IPushProducer)
class UpstreamConnection(Protocol):
    """A connection to the target, carrying one call at a time."""

    transport: IStreamTransport

    def __init__(self, upstream: Upstream, call: UpstreamCall) -> None:
        self._upstream = upstream
        self._call: UpstreamCall | None = call
        self._closing = False
        self._deadline = Deadline(upstream.clock, self._expired)
        #: Whether the transport holds more than the upstream takes.
        self.blocked = False

    def carry(self, call: UpstreamCall) -> None:
        """Begin another call."""
        self._deadline.stop()
        self._call = call
        if call.connected(self):
            call.begin(self.transport)

    def release(self, *, reusable: bool) -> None:
        """The call is over."""
        self._call = None
        if reusable and self._upstream.keep(self):
            self._deadline.set(self._upstream.clock.boot() + self._upstream.limits.idle_connection_seconds)
        else:
            self.discard()

    def discard(self) -> None:
        """Close in order, and within a bound."""
        self._upstream.retire(self)
        self._closing = True
        self._deadline.set(self._upstream.clock.boot() + self._upstream.limits.connect_seconds)
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abandon(self) -> None:
        """Close at once."""
        self._call = None
        self._closing = True
        self.transport.abortConnection()

    # -- what the transport says -----------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        call = self._call
        if call is None:
            return
        self._upstream.opened(self, call)
        if not call.connected(self):
            self.abandon()
        elif not self._upstream.encrypted:
            if is_loopback(getattr(self.transport.getPeer(), "host", "")):
                call.begin(self.transport)
            else:
                call.fail(UpstreamFailed("the upstream is not on this machine", started=False))

    def handshakeCompleted(self) -> None:
        """TLS is up, and the upstream is who it should be."""
        if self._call is not None:
            self._call.begin(self.transport)

    def dataReceived(self, data: bytes) -> None:
        if self._call is not None:
            self._call.received(data)
        elif not self._closing:
            # nobody asked for this
            self.discard()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._deadline.stop()
        self._upstream.forget(self)
        call, self._call = self._call, None
        if call is not None:
            call.lost(reason)

    def pauseProducing(self) -> None:
        self.blocked = True

    def resumeProducing(self) -> None:
        self.blocked = False
        if self._call is not None:
            self._call.drained()

    def stopProducing(self) -> None:
        """The connection is lost; :meth:`connectionLost` does what there is to do."""

    def _expired(self) -> None:
        if self._closing:
            self.transport.abortConnection()
        else:
            self.discard()


class _OneConnection(Factory):
    """Makes the connection that a call dials."""

    noisy = False

    def __init__(self, upstream: Upstream, call: UpstreamCall) -> None:
        self._upstream = upstream
        self._call = call

    def buildProtocol(self, addr: IAddress | None) -> UpstreamConnection:
        return UpstreamConnection(self._upstream, self._call)
