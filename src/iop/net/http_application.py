"""The seam between the HTTP server and what answers requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zope.interface import Attribute, Interface

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request. ``path`` and ``query`` are as they were sent, percent-encoded; names are lower-cased."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]

    def header(self, name: bytes) -> bytes | None:
        """The value of the field ``name`` (lower-case), the first if there are several, or None."""
        for candidate, value in self.headers:
            if candidate == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may take. Sizes in bytes, times in seconds."""

    headers: int = 32 * 1024
    header_count: int = 100
    #: Cap on every body, whatever the application allows.
    body: int = 16 * 1024 * 1024
    #: Cap on all bodies of a listener together: announced, arriving, or with the application until its answer ended.
    #: Of that an owner has no more than it leaves to others, see :class:`~iop.net.body_room.BodyRoom`.
    body_total: int = 256 * 1024 * 1024
    #: From the first byte of a request to the last of its body, however it trickles; and from a connection's beginning,
    #: TLS handshake included, to its first request (P34).
    receive_seconds: float = 30.0
    #: From the first byte of a request to the end of its answer, or None for an application with deadlines of its own.
    call_seconds: float | None = None
    idle_seconds: float = 75.0
    #: A client that leaves its answer unread for this long is dropped.
    write_stall_seconds: float = 60.0
    connections: int = 10_000


class IExchange(Interface):
    """One request and its answer.

    The answer is either one ``respond``, or ``start``, any number of ``write``, and ``finish``; any other order raises
    :class:`RuntimeError`. Once the client is gone, or was refused, every call does nothing.
    """

    head: RequestHead = Attribute("The request's head.")

    def respond(status: int, headers: Headers, body: bytes) -> None:
        """Answer whole.

        :raises BadHttp: if a field could not be sent as what it is (P18); nothing was sent.
        """

    def start(status: int, headers: Headers) -> None:
        """Begin an answer whose body comes in pieces.

        :raises BadHttp: as :meth:`respond`.
        """

    def write(data: bytes) -> None:
        """Send a piece of the body."""

    def finish() -> None:
        """End the answer."""

    def abort() -> None:
        """End the connection so that the client sees that its answer is not whole.

        Of a body that was begun it still gets what was written, and no last chunk. Otherwise the connection is reset.
        """

    def on_gone(callback: Callable[[], object]) -> None:
        """Call ``callback`` once if the exchange ends before its answer: the client went away, or was refused."""

    def on_writable(pause: Callable[[], object], resume: Callable[[], object]) -> None:
        """Call ``pause`` when the client reads more slowly than the answer comes, and ``resume`` when it caught up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """That a request's body is wanted.

    :ivar limit: how many bytes it may have.
    :ivar take: called with the whole of it, which is then the application's to keep and to zero; answers the request
        now or later.
    :ivar owner: whose share of the room for bodies it takes; None if its head does not tell.
    """

    limit: int
    take: Callable[[bytearray], object]
    owner: str | None


class IHttpApplication(Interface):
    """What answers requests. An exception out of it is logged and answered with 500; a ``BadHttp`` with its status."""

    def headed(exchange: IExchange) -> Wanted | None:
        """Judge a request by its head; nothing of its body was read.

        :returns: what becomes of its body, or None when it is answered without it, now or later.
        """

    def refuse(status: int, code: str, message: str) -> tuple[Headers, bytes]:
        """Headers and body for a request that got no further than this server."""
