"""One request and the answer to it, as it is written onto its connection."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from zope.interface import implementer

from iop.net.http_application import Headers, IExchange, RequestHead
from iop.net.response_head import response_head

if TYPE_CHECKING:
    from iop.net.http_connection import HttpConnection

#: Statuses whose answers have no body (RFC 9110, 15.3.5 and 15.4.5).
_BODILESS: Final = frozenset({204, 304})


class _Answer(Enum):
    FRESH = "not begun"
    STREAMING = "begun"
    OVER = "ended"
    GONE = "the client is gone, or was refused"


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
        if self._answer is _Answer.STREAMING and not self._bodiless:
            # the last chunk is missing, which every client notices
            self._connection.cut()
        elif self._answer in (_Answer.FRESH, _Answer.STREAMING):
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
