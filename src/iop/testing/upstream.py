"""An upstream that is played by hand: for what calls providers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from zope.interface import implementer

from iop.errors import UpstreamFailed
from iop.net.upstream import IUpstream, IUpstreamCall, IUpstreamReceiver


@implementer(IUpstreamCall)
class FakeCall:
    """One call; a test answers through ``receiver``.

    ``headers`` is what was sent, ``given`` the very objects of the values; ``written`` the request body so far.
    While ``stalled``, nothing that is written leaves. ``started`` says that the request's head was sent.
    """

    def __init__(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str | bytearray]],
        body_length: int,
        receiver: IUpstreamReceiver,
        start_by: float,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = [(n, value if isinstance(value, str) else value.decode("latin-1")) for n, value in headers]
        self.given = [value for _, value in headers]
        self.body_length = body_length
        self.receiver = receiver
        self.start_by = start_by
        self.written = bytearray()
        self.stalled = False
        self.started = False
        self.paused = False
        self.cancelled = False

    def write(self, piece: bytes) -> None:
        """Take a piece of the request body."""
        self.written += piece
        if not self.stalled:
            self.receiver.writable()

    def pause(self) -> None:
        """Answer no further."""
        self.paused = True

    def resume(self) -> None:
        """Answer on."""
        self.paused = False

    def cancel(self) -> None:
        """Close the connection."""
        self.cancelled = True


@implementer(IUpstream)
class FakeUpstream:
    """Remembers ``calls``, how often it was ``renewed`` and whether it was ``closed``.

    With ``failure`` set, calls fail before they return.
    """

    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        self.renewed = 0
        self.closed = False
        self.failure: UpstreamFailed | None = None
        #: Told of each call as it begins.
        self.watch: Callable[[FakeCall], object] = lambda call: None

    def call(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str | bytearray]],
        body_length: int,
        receiver: IUpstreamReceiver,
        start_by: float = inf,
    ) -> FakeCall:
        """Begin a call."""
        call = FakeCall(method, path, headers, body_length, receiver, start_by)
        self.calls.append(call)
        self.watch(call)
        if self.failure is not None:
            receiver.failed(self.failure)
        return call

    def renew(self) -> None:
        """Count it."""
        self.renewed += 1

    def close(self) -> None:
        """Remember it."""
        self.closed = True
