"""Two ends of a peer connection in memory, moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IAddress, IProtocol, IPushProducer, ITransport
from twisted.internet.protocol import connectionDone
from zope.interface import implementer

from iop.errors import IdentityRefused
from iop.net.peer import PeerFactory, PeerProtocol
from iop.units import Identity

#: Bytes in the buffer from which on a producer is paused, as Twisted's transports do it.
BUFFER_BYTES: Final = 64 * 1024


def whole(data: bytes) -> Iterable[bytes]:
    """Delivers bytes as they were written."""
    return [data]


def in_pieces(size: int) -> Callable[[bytes], Iterable[bytes]]:
    """Delivers bytes in pieces of ``size``."""
    return lambda data: (data[place : place + size] for place in range(0, len(data), size))


class MemoryHandle:
    """The TLS connection of a memory transport: both ends of a pair export the same keying material."""

    def __init__(self, session: bytes) -> None:
        self._session = session

    def export_keying_material(self, label: bytes, olen: int, context: bytes | None = None) -> bytes:
        """Up to 32 bytes that only this pair, label and context give."""
        return sha256(b"\0".join((self._session, label, context or b""))).digest()[:olen]


@implementer(ITransport)
class MemoryTransport:
    """One end's transport.

    :param peer: whom the other end's certificate names.
    :param session: what the two ends of one connection share and no other connection has.

    While ``held``, nothing that was written here arrives, as if the other end did not read. ``outgoing`` is what was
    written and has not arrived.
    """

    def __init__(self, peer: Identity, session: bytes = b"session") -> None:
        self.peer = peer
        self.held = False
        self.outgoing = bytearray()
        #: Whether this end takes what the other wrote.
        self.reading = True
        self.no_delay = False
        self.disconnecting = False
        self.aborted = False
        self._handle = MemoryHandle(session)
        self._producer: IPushProducer | None = None
        self._paused = False

    def write(self, data: bytes) -> None:
        """Buffer ``data``; dropped once the connection is closing."""
        if self.disconnecting:
            return
        self.outgoing += data
        if self._producer is not None and not self._paused and len(self.outgoing) > BUFFER_BYTES:
            self._paused = True
            self._producer.pauseProducing()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Buffer all of ``data``."""
        self.write(b"".join(data))

    def take(self, most: int | None = None) -> bytes:
        """What may arrive now: everything, or ``most`` bytes of it. An empty buffer resumes its producer."""
        if self.held:
            return b""
        data = bytes(self.outgoing[:most])
        del self.outgoing[:most]
        if self._producer is not None and self._paused and not self.outgoing:
            self._paused = False
            self._producer.resumeProducing()
        return data

    @property
    def finished(self) -> bool:
        """Whether this end has closed and everything it sent before has arrived."""
        return self.aborted or (self.disconnecting and self._producer is None and not self.outgoing)

    def loseConnection(self) -> None:
        """Close once everything written has arrived; a registered producer delays it, as with TLS."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Close now; what was written is lost."""
        self.disconnecting = self.aborted = True
        self.outgoing.clear()

    def pauseProducing(self) -> None:
        """Take nothing from the other end."""
        self.reading = False

    def resumeProducing(self) -> None:
        """Take what comes from the other end."""
        self.reading = True

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Pause and resume ``producer`` as the buffer fills and empties."""
        if not streaming:
            raise ValueError("only streaming producers")
        self._producer = IPushProducer(producer)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self._producer = None

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Remember it; nothing is ever delayed here."""
        self.no_delay = enabled

    def getHandle(self) -> MemoryHandle:
        """What gives keying material."""
        return self._handle

    def getPeer(self) -> IAddress:
        """An address that means nothing."""
        return IPv4Address("TCP", "192.0.2.1", 1)

    def getHost(self) -> IAddress:
        """An address that means nothing."""
        return IPv4Address("TCP", "192.0.2.2", 2)


def memory_identity(transport: ITransport) -> Identity:
    """Reads the identity that a :class:`MemoryTransport` was given: the ``identify`` of factories in tests."""
    if not isinstance(transport, MemoryTransport):
        raise IdentityRefused("not a memory transport")
    return transport.peer


def attach(factory: PeerFactory, peer: Identity, *, handshake: bool = True) -> tuple[PeerProtocol, MemoryTransport]:
    """One end alone, with TLS up unless ``handshake`` is false, for a test that plays ``peer`` by hand."""
    protocol, transport = factory.buildProtocol(None), MemoryTransport(peer)
    IProtocol(protocol).makeConnection(transport)
    if handshake:
        protocol.handshakeCompleted()
    return protocol, transport


class PeerPair:
    """A connection between a dialling and an accepting factory, TLS up, nothing moved yet.

    :param dialler: the identity of the dialling side; ``listener`` that of the accepting one.
    :param split: how written bytes are cut when they arrive.
    """

    def __init__(
        self,
        dialling: PeerFactory,
        accepting: PeerFactory,
        *,
        dialler: Identity,
        listener: Identity,
        split: Callable[[bytes], Iterable[bytes]] = whole,
    ) -> None:
        self.initiator, self.initiator_transport = attach(dialling, listener, handshake=False)
        self.acceptor, self.acceptor_transport = attach(accepting, dialler, handshake=False)
        self._split = split
        self._lost = False
        self.acceptor.handshakeCompleted()
        self.initiator.handshakeCompleted()

    @property
    def ended(self) -> bool:
        """Whether the connection has ended."""
        return self._lost

    def pump(self) -> None:
        """Deliver until nothing moves any more, or only a later turn of the event loop takes more."""
        moved = True
        while moved and not self._lost:
            there = self._move(self.initiator_transport, self.acceptor_transport, self.acceptor)
            back = self._move(self.acceptor_transport, self.initiator_transport, self.initiator)
            moved = there or back
            if self.initiator_transport.finished or self.acceptor_transport.finished:
                self.cut()

    def cut(self) -> None:
        """End the connection under both."""
        if not self._lost:
            self._lost = True
            self.acceptor.connectionLost(connectionDone)
            self.initiator.connectionLost(connectionDone)

    def _move(self, source: MemoryTransport, target: MemoryTransport, protocol: PeerProtocol) -> bool:
        data = source.take() if target.reading else b""
        if not data:
            return False
        for piece in self._split(data):
            if not target.aborted:
                protocol.dataReceived(piece)
        return True
