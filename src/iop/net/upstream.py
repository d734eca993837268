"""The Node's HTTP/1.1 client: one target, kept connections, streaming both ways, nothing followed, nothing retried.

Only the target's own host and port are ever dialled, over TLS whose handshake verified it, or on this machine (P17). A
redirect is an answer like any other; who gets it decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from math import inf
from typing import TYPE_CHECKING, Final

from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from zope.interface import Interface, implementer

from iop.core.headers import HOP_BY_HOP, is_header_name
from iop.errors import BadConfig, BadHttp, UpstreamBusy
from iop.net.target import Target, is_path, parse_target
from iop.net.upstream_call import IUpstreamCall, IUpstreamReceiver, UpstreamCall, UpstreamConnection

if TYPE_CHECKING:
    from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTCP, IStreamClientEndpoint

    from iop.interfaces import IClock

__all__ = [
    "IUpstream",
    "IUpstreamCall",
    "IUpstreamReceiver",
    "Target",
    "Upstream",
    "UpstreamLimits",
    "parse_target",
]

_METHODS: Final = frozenset({"GET", "POST"})
#: Printable ASCII and obs-text, as Latin-1.
_VALUE: Final = re.compile(rb"[\x20-\x7e\xa0-\xff]*")


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """How much of an upstream there may be. Times in seconds, sizes in bytes."""

    connections: int = 256
    idle_connection_seconds: float = 30.0
    #: Name resolution, TCP and TLS together.
    connect_seconds: float = 10.0
    #: From the request's head to the last byte of the answer's, however it trickles and whatever interim answers come.
    first_byte_seconds: float = 600.0
    #: Between two arrivals of an answer after its head, while it is wanted.
    between_bytes_seconds: float = 120.0
    response_head: int = 64 * 1024


class IUpstream(Interface):
    """Calls one target."""

    def call(
        method: str,
        path: str,
        headers: Sequence[tuple[str, str | bytearray]],
        body_length: int,
        receiver: IUpstreamReceiver,
        start_by: float = inf,
    ) -> IUpstreamCall:
        """Begin a call.

        :param method: GET or POST.
        :param path: appended to the target's base path; no query, dot segment or percent-encoding.
        :param headers: lower-case names. A value in a ``bytearray`` is copied; its owner may zero it afterwards.
        :param body_length: bytes that will be written.
        :param start_by: boot time in seconds from which on a call of which nothing was sent fails with
            :class:`~iop.errors.UpstreamLate` (P41).
        :raises BadHttp: 400 if any of it could become anything else upstream (P18); nothing was dialled.
        """

    def renew() -> None:
        """Close kept connections now and those in use after their calls; what comes after is dialled anew."""

    def close() -> None:
        """Close kept connections now and those in use after their calls, and open no more."""


@implementer(IUpstream)
class Upstream:
    """Calls one target over kept connections.

    A kept connection that dies under a call before any answer fails that call: bytes were written, so whether the
    upstream acted on them is unknown, and nothing is retried here.

    :param reactor: dials.
    :param tls: makes TLS that verifies the target (:func:`iop.net.tls.web_client`); None for an ``http`` target.
    :raises BadConfig: if ``tls`` does not go with the target's scheme.
    """

    def __init__(
        self,
        reactor: IReactorTCP,
        clock: IClock,
        target: Target,
        tls: IOpenSSLClientConnectionCreator | None,
        limits: UpstreamLimits | None = None,
    ) -> None:
        if (tls is None) is not (target.scheme == "http"):
            raise BadConfig("a target needs TLS exactly if its base URL is https", hint="check the target's trust")
        self.clock = clock
        self.limits = limits or UpstreamLimits()
        self._target = target
        self._endpoint = endpoint_of(reactor, target, tls, self.limits.connect_seconds)
        self._idle: list[UpstreamConnection] = []
        self._dialling: set[UpstreamCall] = set()
        self._connections: set[UpstreamConnection] = set()
        #: Of those, the ones that take no further call.
        self._outdated: set[UpstreamConnection] = set()
        self._closed = False

    @property
    def encrypted(self) -> bool:
        """Whether a connection is fit for use only after its handshake."""
        return self._target.scheme == "https"

    def call(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str | bytearray]],
        body_length: int,
        receiver: IUpstreamReceiver,
        start_by: float = inf,
    ) -> UpstreamCall:
        head = _request_head(self._target, method, path, headers, body_length)
        call = UpstreamCall(self, head, body_length, receiver, start_by)
        if self._idle:
            self._idle.pop().carry(call)
        elif self._closed or len(self._dialling) + len(self._connections) >= self.limits.connections:
            call.fail(UpstreamBusy("no further connection to the upstream may be opened", started=False))
        else:
            self._dialling.add(call)
            call.dial(self._endpoint)
        return call

    def renew(self) -> None:
        """Close kept connections now and those in use after their calls; what comes after is dialled anew."""
        self._outdated |= self._connections
        for connection in list(self._idle):
            connection.discard()

    def close(self) -> None:
        """Close kept connections now and those in use after their calls, and open no more."""
        self._closed = True
        self.renew()

    # -- what calls and connections say ----------------------------------------------------------------------------

    def opened(self, connection: UpstreamConnection, call: UpstreamCall) -> None:
        """There is a connection for ``call``."""
        self._dialling.discard(call)
        self._connections.add(connection)

    def gave_up(self, call: UpstreamCall) -> None:
        """``call`` needs no connection any more."""
        self._dialling.discard(call)

    def keep(self, connection: UpstreamConnection) -> bool:
        """Take a connection back for another call; answers whether it is wanted."""
        wanted = not self._closed and connection not in self._outdated
        if wanted:
            self._idle.append(connection)
        return wanted

    def retire(self, connection: UpstreamConnection) -> None:
        """A connection is not to be used again."""
        if connection in self._idle:
            self._idle.remove(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.retire(connection)
        self._connections.discard(connection)
        self._outdated.discard(connection)


def endpoint_of(
    reactor: IReactorTCP, target: Target, tls: IOpenSSLClientConnectionCreator | None, timeout: float
) -> IStreamClientEndpoint:
    """What leads to ``target``, through TLS if ``tls`` is given; ``timeout``: seconds until a connection must be up."""
    try:
        address = ip_address(target.host)
    except ValueError:
        endpoint: IStreamClientEndpoint = HostnameEndpoint(reactor, target.host, target.port, timeout=timeout)
    else:
        literal = TCP4ClientEndpoint if isinstance(address, IPv4Address) else TCP6ClientEndpoint
        endpoint = literal(reactor, target.host, target.port, timeout=timeout)
    return endpoint if tls is None else wrapClientTLS(tls, endpoint)


def _request_head(
    target: Target, method: str, path: str, headers: Sequence[tuple[str, str | bytearray]], body_length: int
) -> bytearray:
    """The request's head in a buffer of its own (P18)."""
    if method not in _METHODS or not is_path(path):
        raise BadHttp(400, "a method or path may not be sent upstream")
    head = bytearray(f"{method} {target.base_path}{path} HTTP/1.1\r\nhost: {target.authority}\r\n".encode("ascii"))
    for name, value in headers:
        try:
            octets = value.encode("latin-1") if isinstance(value, str) else value
        except UnicodeEncodeError:
            raise BadHttp(400, "a header field is not Latin-1") from None
        if not is_header_name(name) or name in HOP_BY_HOP or _VALUE.fullmatch(octets) is None:
            raise BadHttp(400, "a header field may not be sent upstream")
        head += name.encode("ascii") + b": " + octets + b"\r\n"
    if body_length or method == "POST":
        head += b"content-length: %d\r\n" % body_length
    head += b"\r\n"
    return head
