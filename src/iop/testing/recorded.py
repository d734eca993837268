"""A peer that only remembers what it was told to send: for what stands on one end of a connection."""

from __future__ import annotations

from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from zope.interface import implementer

from iop.errors import IopError
from iop.interfaces import IPeer
from iop.units import Identity


@implementer(IPeer)
class RecordedPeer:
    """One end of a connection without another end.

    ``sent`` holds notifications in order, ``asked`` requests with the Deferred of their answer, ``closed`` the reasons
    the connection was closed for, ``drained`` whether it was drained.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.sent: list[Message] = []
        self.asked: list[tuple[Message, Deferred[Message]]] = []
        self.closed: list[IopError] = []
        self.drained = False

    def request(self, message: Message, timeout_seconds: float) -> Deferred[Message]:
        """Remember a request; a test fires its Deferred."""
        answer: Deferred[Message] = Deferred()
        self.asked.append((message, answer))
        return answer

    def notify(self, message: Message) -> None:
        """Remember a notification."""
        self.sent.append(message)

    def exporter(self, label: bytes, length: int) -> bytes:
        """Bytes that stand for this connection's keying material."""
        return (label + b"recorded" * length)[:length]

    def close(self, reason: IopError) -> None:
        """Remember why."""
        self.closed.append(reason)

    def drain(self) -> None:
        """Remember it."""
        self.drained = True

    def take(self) -> list[Message]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent
