"""Resources of twisted.web and klein, behind this project's own HTTP server.

twisted.web's server takes a body of any announced length, lets a byte now and then hold a connection for ever, and
hands repeated Host and Authorization fields to whoever asks for one of them. So it is not used: a resource here gets a
request only when :mod:`iop.net.http1` has read it whole, within limits that depend on its route (P32, P34, P37, P39).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers as WebHeaders
from twisted.web.resource import getChildForRequest
from twisted.web.server import Request
from zope.interface import implementer

from iop.net.http1 import Headers, HttpLimits, HttpServerFactory, IExchange, IHttpApplication, Wanted

if TYPE_CHECKING:
    from twisted.web.resource import IResource

    from iop.interfaces import IClock

_log = Logger()

#: Bytes a call's body may have, by method and raw path.
BodyLimit = Callable[[bytes, bytes], int]
#: Headers and body for a call that does not reach its resource, from status, stable code and message.
Refuse = Callable[[int, str, str], tuple[Headers, bytes]]

#: Fields of an answer that the connection sets, or that tell what software answers.
_DROPPED: Final = frozenset({b"connection", b"content-length", b"date", b"server", b"transfer-encoding"})
#: With this version a Request leaves it to its channel how the answer is delimited.
_UNFRAMED: Final = b"HTTP/1.0"
#: Behind the guard nobody decides by addresses; this one adds no port to the host that the client named.
_ADDRESS: Final = IPv4Address("TCP", "0.0.0.0", 80)  # noqa: S104 - nothing is bound to it


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """What a client may take. Sizes in bytes, times in seconds."""

    headers: int = 16 * 1024
    #: Cap on every body, whatever the route allows.
    body: int = 64 * 1024
    #: Cap on all bodies together that are arriving or being answered.
    body_total: int = 16 * 1024 * 1024
    #: From the first byte of a request to the end of its answer.
    call_seconds: float = 15.0
    idle_seconds: float = 60.0
    connections: int = 1000


def guarded_site(
    resource: IResource, clock: IClock, limits: GuardLimits, body_limit: BodyLimit, refuse: Refuse
) -> HttpServerFactory:
    """A listener's factory for ``resource``.

    :param body_limit: asked before any of a body is read.
    :param refuse: makes the answers to calls that never reach ``resource``, and to those it fails on.
    """
    return HttpServerFactory(
        _WebApplication(resource, body_limit, refuse),
        clock,
        HttpLimits(
            headers=limits.headers,
            body=limits.body,
            body_total=limits.body_total,
            receive_seconds=limits.call_seconds,
            call_seconds=limits.call_seconds,
            idle_seconds=limits.idle_seconds,
            connections=limits.connections,
        ),
    )


@implementer(IHttpApplication)
class _WebApplication:
    """Turns exchanges into requests of twisted.web."""

    def __init__(self, resource: IResource, body_limit: BodyLimit, refuse: Refuse) -> None:
        self._site = _Site(resource)
        self._body_limit = body_limit
        self.refuse = refuse

    def headed(self, exchange: IExchange) -> Wanted:
        limit = self._body_limit(exchange.head.method.encode("ascii"), exchange.head.path.encode("ascii"))
        # who calls is for the resource to find out, later
        return Wanted(limit, partial(self._serve, exchange), owner=None)

    def _serve(self, exchange: IExchange, body: bytearray) -> None:
        head = exchange.head
        request: Request = _Request(_Channel(exchange, self._site), self.refuse)
        request.content = WipedBody(body)
        body[:] = bytes(len(body))
        for name, value in head.headers:
            request.requestHeaders.addRawHeader(name, value)
        exchange.on_gone(lambda: request.connectionLost(Failure(ConnectionLost("the call ended without its answer"))))
        target = f"{head.path}?{head.query}" if head.query else head.path
        request.requestReceived(head.method.encode("ascii"), target.encode("ascii"), _UNFRAMED)


class _Site:
    """What a Request asks of the site it came to."""

    displayTracebacks = False
    _parsePOSTFormSubmission = False

    def __init__(self, resource: IResource) -> None:
        self._resource = resource

    def getResourceFor(self, request: Request) -> IResource:
        found: IResource = getChildForRequest(self._resource, request)
        return found


class WipedBody(BytesIO):
    """A body, which may be a secret: zeroed when it is closed, and so when its request is over."""

    def wipe(self) -> None:
        """Zero the buffer."""
        with self.getbuffer() as buffer:
            buffer[:] = bytes(len(buffer))

    def close(self) -> None:
        if not self.closed:
            self.wipe()
        super().close()


class _Channel:
    """What a Request asks of its connection. An answer is collected and sent whole."""

    factory = None
    transport = None

    def __init__(self, exchange: IExchange, site: _Site) -> None:
        self.site = site
        self._exchange = exchange
        self._status = 0
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._instead: tuple[int, Headers, bytes] | None = None

    def replace(self, status: int, headers: Headers, body: bytes) -> None:
        """Send this in place of whatever is collected."""
        self._instead = status, headers, body

    def getPeer(self) -> IPv4Address:
        return _ADDRESS

    def getHost(self) -> IPv4Address:
        return _ADDRESS

    def isSecure(self) -> bool:
        return False

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: WebHeaders) -> None:
        self._status = int(code)
        self._headers = [
            (name.lower(), value)
            for name, values in headers.getAllRawHeaders()
            if name.lower() not in _DROPPED
            for value in values
        ]

    def write(self, data: bytes) -> None:
        self._body.append(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self._body.extend(data)

    def requestDone(self, request: Request) -> None:
        if self._instead is not None:
            self._exchange.respond(*self._instead)
        elif self._exchange.head.method == "HEAD":
            # the length that GET would have is not known: a Request has dropped the body
            self._exchange.start(self._status, self._headers)
            self._exchange.finish()
        else:
            self._exchange.respond(self._status, self._headers, b"".join(self._body))

    def loseConnection(self) -> None:
        self._exchange.abort()


class _Request(Request):
    """A request whose resource may fail without showing it."""

    defaultContentType = None

    def __init__(self, channel: _Channel, refuse: Refuse) -> None:
        Request.__init__(self, channel)
        self._answers = channel
        self._refuse = refuse

    def processingFailed(self, reason: Failure) -> None:
        _log.failure("net.guard.resource_failed", reason)
        self._answers.replace(500, *self._refuse(500, "internal", "something went wrong here"))
        Request.finish(self)
