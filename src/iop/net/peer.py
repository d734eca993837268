"""A peer connection on a Twisted transport: frames in and out, one timer, an application above.

The rules are :class:`iop.core.session.Session`'s; this module gives it bytes, time and somebody to talk to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IHandshakeListener, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.core.session import Session
from iop.core.session_table import ACCEPTED, State
from iop.errors import IopError, PeerDisconnected, PeerNotReading, TooManyConnections
from iop.interfaces import IPeer
from iop.net.deadline import Deadline
from iop.net.tls import why_lost
from iop.units import RUN_WINDOW
from iop.wire.framing import FrameDecoder, encode_frame

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from twisted.internet.interfaces import IAddress, IDelayedCall, ITransport

    from iop.interfaces import IClock, IPeerApplication
    from iop.net.transport import ITlsTransport
    from iop.units import Identity
    from iop.wire.dialect import Dialect

#: Bytes kept for a peer that does not read: the whole windows of 256 runs. One frame more closes the connection.
UNREAD_LIMIT: Final = 256 * RUN_WINDOW
#: Connections of one listener, those whose handshake is not done included.
CONNECTIONS_LIMIT: Final = 4096
#: Connections of one listener whose hello nobody has accepted yet.
STRANGERS_LIMIT: Final = 256
#: What a kept frame costs beside its bytes.
FRAME_COST: Final = 64
#: Bytes of frames that leave together.
GATHER_LIMIT: Final = 64 * 1024
#: Frames of one connection that are judged in one turn of the event loop. The others' turns come in between, and the
#: peer works on the first answers while this side makes the next.
TURN_FRAMES: Final = 16
#: How long a last message may take to leave before the connection is cut.
FLUSH_SECONDS: Final = 2.0

log = Logger()


@implementer(IPeer, IHandshakeListener, IPushProducer)
class PeerProtocol(Protocol):
    """One connection to another role.

    Nothing is delivered, and the application does not exist, before the TLS handshake is complete and ``identify`` has
    named the peer. The application hears of the end exactly once, from within whatever ended the connection.
    """

    identity: Identity
    transport: ITlsTransport

    def __init__(self, factory: PeerFactory) -> None:
        self._factory = factory
        self._application: IPeerApplication | None = None
        self._clock = factory.clock
        self._deadline = Deadline(factory.clock, self._expired)
        self._paused = False
        #: Frames that the transport was not given because it is full, and their bytes.
        self._unwritten: deque[bytes] = deque()
        self._unread = 0
        #: Frames that leave together when what brought them about is done.
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._gathering = False
        #: Set while frames that have arrived wait for the next turn; the transport is not read meanwhile.
        self._next_turn: IDelayedCall | None = None

    @property
    def accepted(self) -> bool:
        """Whether a hello was accepted on this connection."""
        return self._session.state in ACCEPTED

    def reverify(self) -> None:
        """See :meth:`PeerFactory.reverify`."""
        if self._application is not None:
            self._guard(self._factory.identify, self.transport)

    def make_room(self) -> None:
        """End at once, for another connection, even if last words are still on their way."""
        self.close(TooManyConnections("too many connections wait for their hello"))
        self.transport.abortConnection()

    # -- IProtocol, IHandshakeListener --------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """The deadline of handshake and hello runs from here (W7)."""
        factory = self._factory
        self._session = Session(factory.dialect, initiator=factory.initiator, outlet=self, now=self._clock.boot)
        self._decoder = FrameDecoder(self._session.frame_limit)
        if not factory.opened(self):
            self.close(TooManyConnections(f"this listener carries {CONNECTIONS_LIMIT} connections already"))
            return
        # a frame that follows another at once must not wait until that one is acknowledged
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._arm()

    def handshakeCompleted(self) -> None:
        """TLS is up: learn who the peer is, then let an application meet it."""
        self._guard(self._meet)
        self._arm()

    def dataReceived(self, data: bytes) -> None:
        """Judge what frames are in it, some now and the others in turns to come."""
        if self._session.state is State.CLOSED:
            return
        self._decoder.feed(data)
        if self._next_turn is None and not self._judge():
            self.transport.pauseProducing()
            self._take_turn_later()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone; what arrived before still counts."""
        self.connected = 0
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
            while not self._judge():
                pass
        self._session.close(why_lost(self.transport, reason) or PeerDisconnected("the connection ended"))
        self._deadline.stop()
        self._factory.closed(self)

    # -- IPushProducer ------------------------------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """The transport's buffer is full: keep what is sent from now on."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The transport's buffer is empty: fill it again."""
        self._paused = False
        # a write may pause
        while self._unwritten and not self._paused:
            frame = self._unwritten.popleft()
            self._unread -= len(frame) + FRAME_COST
            self.transport.write(frame)

    def stopProducing(self) -> None:
        """The transport closes; ``connectionLost`` follows."""

    # -- IPeer --------------------------------------------------------------------------------------------------------

    def request(self, message: Message, timeout_seconds: float) -> Deferred[Message]:
        """See :meth:`iop.interfaces.IPeer.request`; cancelling stops waiting, not the request."""
        answer: Deferred[Message] = Deferred()
        try:
            self._deadline.sooner(self._session.ask(message, timeout_seconds, partial(_settle, answer)))
        except IopError as refusal:
            return fail(refusal)
        return answer

    def notify(self, message: Message) -> None:
        """See :meth:`iop.interfaces.IPeer.notify`."""
        self._session.tell(message)

    def exporter(self, label: bytes, length: int) -> bytes:
        """See :meth:`iop.interfaces.IPeer.exporter`; :class:`~iop.errors.PeerDisconnected` after the end."""
        if not self.connected:
            raise PeerDisconnected("the connection has ended")
        return self.transport.getHandle().export_keying_material(label, length)

    def close(self, reason: IopError) -> None:
        """See :meth:`iop.interfaces.IPeer.close`."""
        self._session.close(reason)

    def drain(self) -> None:
        """See :meth:`iop.interfaces.IPeer.drain`."""
        self._session.drain()

    # -- Outlet of the session ----------------------------------------------------------------------------------------

    def send(self, payload: bytes) -> None:
        """Write a frame, unless the peer reads so little that it would be kept without bound."""
        frame = encode_frame(payload)
        if not self._paused:
            # what one chunk brings about leaves in one piece: a write costs more than most frames
            self._gathered.append(frame)
            self._gathered_bytes += len(frame)
            if not self._gathering or self._gathered_bytes > GATHER_LIMIT:
                self._write_gathered()
            return
        self._unread += len(frame) + FRAME_COST
        if self._unread > UNREAD_LIMIT:
            self.close(PeerNotReading(f"the peer leaves more than {UNREAD_LIMIT} bytes unread"))
        else:
            self._unwritten.append(frame)

    def asked(self, request: int, message: Message) -> None:
        """Have the application answer; if it raises or fails, the connection ends."""
        try:
            self._present().asked(message).addCallbacks(self._reply, partial(close_for, self), (request,))
        except Exception:  # noqa: BLE001 - any fault of an application stays with its connection
            close_for(self, Failure())

    def notified(self, message: Message) -> None:
        """Hand a notification on."""
        self._guard(self._present().notified, message)

    def closed(self, reason: IopError, flush: bool) -> None:
        """Close the transport and tell the application. The peer is not told why, the log is (W13)."""
        self._deadline.stop()
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
            self.transport.resumeProducing()
        if self.connected:
            # A transport with a producer waits for it before it closes.
            self.transport.unregisterProducer()
            if flush:
                self._write_gathered()
                self.transport.writeSequence(self._unwritten)
                self.transport.loseConnection()
                self._deadline.set(self._clock.boot() + FLUSH_SECONDS)
            else:
                self.transport.abortConnection()
        self._unwritten.clear()
        self._gathered.clear()
        log.info(
            "net.peer.ended",
            peer=self.identity.uri() if self._application else None,
            address=getattr(self.transport.getPeer(), "host", None),
            code=reason.code,
            reason=reason.message,
        )
        if self._application is not None:
            self._guard(self._application.lost, reason)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _judge(self) -> bool:
        """Have the frames of one turn judged, each by the state that the one before it led to; whether those are all.

        What they bring about leaves in one piece.
        """
        self._gathering = True
        session, decoder = self._session, self._decoder
        all_judged = False
        try:
            for _ in range(TURN_FRAMES):
                # what this side said since the last frame moves the limit too
                decoder.limit = session.frame_limit
                frame = decoder.next_frame()
                if frame is None:
                    all_judged = True
                    break
                session.received(frame)
        except Exception:  # noqa: BLE001 - a breach, or a fault of ours: neither may leave a connection that is not read
            close_for(self, Failure())
        self._gathering = False
        self._write_gathered()
        self._arm()
        return all_judged or session.state is State.CLOSED

    def _take_turn_later(self) -> None:
        self._next_turn = self._clock.call_later(0, self._take_turn)

    def _take_turn(self) -> None:
        self._next_turn = None
        if not self._judge():
            self._take_turn_later()
        else:
            self.transport.resumeProducing()

    def _write_gathered(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._gathered_bytes = 0
            # may pause
            self.transport.write(data)

    def _meet(self) -> None:
        if self._session.state is State.CONNECTING:
            self.identity = self._factory.identify(self.transport)
            self._application = self._factory.application()
        self._session.tls_up()
        if self._session.state is State.HELLO_DUE:
            self._present().connected(self)

    def _present(self) -> IPeerApplication:
        if self._application is None:
            raise RuntimeError("a message was delivered before TLS was up")
        return self._application

    def _reply(self, answer: Message, request: int) -> None:
        before = self._session.state
        self._guard(self._session.reply, request, answer)
        if self._session.state is not before:
            self._arm()

    def _guard(self, call: Callable[..., object], *args: object) -> None:
        """Call the application; whatever it raises ends this connection and nothing else."""
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - any fault of an application stays with its connection
            close_for(self, Failure())

    def _arm(self) -> None:
        """Have the session called when it is due."""
        due = self._session.next_wakeup()
        if due is not None:
            self._deadline.set(due)

    def _expired(self) -> None:
        if self._session.state is State.CLOSED:
            # its last words did not leave in time
            self.transport.abortConnection()
        else:
            self._session.tick()
            self._arm()


class PeerFactory(Factory):
    """Makes the connections of one listener or dialler.

    :param initiator: whether this side dials.
    :param application: makes the application of one connection.
    :param identify: reads the verified identity of a transport; raises :class:`~iop.errors.IdentityRefused`.
    """

    noisy = False

    def __init__(
        self,
        dialect: Dialect,
        *,
        initiator: bool,
        application: Callable[[], IPeerApplication],
        clock: IClock,
        identify: Callable[[ITransport], Identity],
    ) -> None:
        self.dialect = dialect
        self.initiator = initiator
        self.application = application
        self.clock = clock
        self.identify = identify
        #: Oldest first.
        self._connections: dict[PeerProtocol, None] = {}

    def buildProtocol(self, addr: IAddress | None) -> PeerProtocol:
        """A protocol for one connection; whether that may stay, :meth:`opened` says."""
        return PeerProtocol(self)

    def opened(self, connection: PeerProtocol) -> bool:
        """``connection`` is up; answers whether it may stay.

        Of those that nobody has accepted yet, the oldest makes room, so that whoever only connects keeps nobody out. It
        counts no more from now on: its end takes a turn of the event loop, in which many others may come.
        """
        if len(self._connections) >= CONNECTIONS_LIMIT:
            return False
        self._connections[connection] = None
        strangers = [each for each in self._connections if not each.accepted]
        if len(strangers) > STRANGERS_LIMIT:
            del self._connections[strangers[0]]
            strangers[0].make_room()
        return True

    def reverify(self) -> None:
        """Identify every peer again; a connection whose peer is refused now is closed with that refusal.

        Those whose handshake is not done have their first identification still before them.
        """
        for connection in list(self._connections):
            connection.reverify()

    def closed(self, connection: PeerProtocol) -> None:
        """``connection`` is gone."""
        self._connections.pop(connection, None)


def _settle(answer: Deferred[Message], outcome: Message | IopError) -> None:
    if isinstance(outcome, IopError):
        answer.errback(outcome)
    else:
        answer.callback(outcome)


def close_for(peer: IPeer, failure: Failure) -> None:
    """End a connection because of what failed on it: with that reason, or as internal once it was logged.

    An errback for whatever a role does with a connection: one on which a step broke off is of no use, and would stay
    up, kept alive, for ever.
    """
    if isinstance(failure.value, IopError):
        peer.close(failure.value)
    else:
        log.failure("net.peer.broke", failure)
        peer.close(IopError("an internal error ended the connection"))
