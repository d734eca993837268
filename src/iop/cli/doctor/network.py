"""Whom a role dials: whether an address answers, who is there, and what a role's own status page says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import treq
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.error import (
    ConnectError,
    ConnectionClosed,
    ConnectionRefusedError,
    DNSLookupError,
)
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.web.client import ResponseFailed
from zope.interface import implementer

from iop.cli.body import Body
from iop.cli.doctor.checks import Finding, fault, ok
from iop.control_plane.service import NO_STORE
from iop.edge.control_link import NO_CONTROL_PLANE, NO_PROJECTION
from iop.edge.parts import NO_NODE
from iop.errors import IdentityRefused, IopError, MalformedInput
from iop.net.tls import ClientConnections, peer_identity, why_lost
from iop.node.service import NOT_REGISTERED
from iop.process.role import RELOAD_REFUSED
from iop.wire.strict_json import parse_json

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint, ITCPTransport
    from twisted.python.failure import Failure

    from iop.units import Identity

P = TypeVar("P", bound=Protocol)

#: Seconds that one step of a look takes at most: connecting, a handshake, a status page.
LOOK_SECONDS: Final = 4.0
_STATUS_LIMIT: Final = 64 * 1024
_NO_CONTROL_PLANE_HINT: Final = (
    "if nothing is said of [control_plane] here, `edge.control.disconnected` in its log says why: for example, that "
    "this Edge is denied, which `iop edge allow NAME` at the Control Plane ends"
)
#: How reasons of a role begin, and what to do about each.
_REASONS: Final = (
    (RELOAD_REFUSED, "mend what the last reload found, if that is not done yet, then send the role SIGHUP again"),
    (NO_STORE, "if nothing is said of [store] here, see `control.store.trouble` in its log"),
    (NO_PROJECTION, _NO_CONTROL_PLANE_HINT),
    (NO_CONTROL_PLANE, _NO_CONTROL_PLANE_HINT),
    (NO_NODE, "run iop doctor for the Node; if it dials, `edge.node.refused` in the log of this Edge says why"),
    (NOT_REGISTERED, "if nothing is said of [edge] here, `node.edge.disconnected` in its log says why"),
)
_NO_CONNECTION = (ConnectError, DNSLookupError, ConnectionClosed, TimeoutError)


async def reach(reactor: IReactorTime, endpoint: IStreamClientEndpoint, place: str, start: str) -> Finding:
    """Whether a TCP connection to ``place`` comes up; it is closed at once, without a byte.

    :param endpoint: leads there.
    :param start: what starts who should be there, for people: ``start the Edge``.
    """
    try:
        protocol = await _connected(reactor, endpoint, Protocol)
    except _NO_CONNECTION as error:
        return _unreachable(error, place, start)
    cast("ITCPTransport", protocol.transport).abortConnection()
    return ok(f"{place} takes connections")


async def meet(
    reactor: IReactorTime, endpoint: IStreamClientEndpoint, tls: ClientConnections, table: str, place: str
) -> Finding:
    """Whether the TLS handshake with a peer holds for both sides.

    :param tls: this role's end, which decides who may be there.
    :param table: with ``name`` and ``server_name`` of the peer, ``[edge]``.
    """
    try:
        meeting = await _connected(reactor, wrapClientTLS(tls, endpoint), _Meeting)
    except _NO_CONNECTION as error:
        return _unreachable(error, place, "start it")
    try:
        refusal = await meeting.over.addTimeout(LOOK_SECONDS, reactor)
    except TimeoutError:
        cast("ITCPTransport", meeting.transport).abortConnection()
        return fault(
            f"{place} takes connections and does not do TLS within {LOOK_SECONDS:.0f} seconds",
            f"check that {table} endpoint is the peer's mTLS listener, and that nothing in between holds it back",
        )
    if isinstance(refusal, IdentityRefused):
        return fault(
            f"at {place}: {refusal.message}",
            f"compare {table} name and server_name, and trust, with what `iop pki inspect` says of its certificate",
        )
    if meeting.identity is None or refusal is not None:
        said = "it ended the connection" if refusal is None else refusal.message
        return fault(
            f"at {place}: {said}",
            "if it is an mTLS listener, it refuses this role's certificate: its trust must have the authority of that, "
            "its trust_domain must be the same, and its log says more",
        )
    return ok(f"{meeting.identity.uri()} at {place}")


async def readiness(reactor: Any, address: str) -> Finding:
    """What ``/readyz`` of a running role says.

    :param address: where its status listener is, ``host:port``.
    """
    try:
        asking = Deferred.fromCoroutine(_page(reactor, f"http://{address}/readyz"))
        document = parse_json(await asking.addTimeout(LOOK_SECONDS, reactor, _late))
    except (*_NO_CONNECTION, ResponseFailed, MalformedInput):
        return fault(
            f"http://{address}/readyz does not answer as a role does",
            "its log says what it does; if the process is another one, remove the file in [run] directory",
        )
    if isinstance(document, dict) and document.get("ready") is True:
        return ok("ready")
    reasons = document.get("reasons") if isinstance(document, dict) else None
    if not isinstance(reasons, list) or not reasons:
        return fault("not ready, and no reason is given", "its log says what it does")
    said = [str(reason) for reason in reasons]
    return fault(f"not ready: {'; '.join(said)}", "; ".join(dict.fromkeys(_what_to_do(reason) for reason in said)))


def _what_to_do(reason: str) -> str:
    """About a reason for which a role is not ready."""
    known = (hint for begin, hint in _REASONS if reason.startswith(begin))
    return next(known, "see what else is at fault here, and its log")


async def _page(reactor: Any, url: str) -> bytes:
    """What is at ``url``; :class:`~iop.errors.MalformedInput` if it is longer than a status page can be."""
    answer = await treq.get(url, reactor=reactor, unbuffered=True, allow_redirects=False, persistent=False)
    body = Body(_STATUS_LIMIT)
    answer.deliverBody(body)
    return await body.whole


@implementer(IHandshakeListener)
class _Meeting(Protocol):
    """Does the handshake and leaves; only then is it known whether the peer accepted this side's certificate.

    In TLS 1.3 that is judged after this side's handshake is done. So the connection is closed in good order, without a
    byte of ours, and the peer answers with its own close, or with the alert that it refuses the certificate.

    :ivar over: fires with why TLS ended the connection, None for an end in good order.
    """

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.over: Deferred[IopError | None] = Deferred()

    def handshakeCompleted(self) -> None:
        self.identity = peer_identity(self._transport())
        self._transport().loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.over.called:
            self.over.callback(why_lost(self._transport(), reason))

    def _transport(self) -> ITCPTransport:
        return cast("ITCPTransport", self.transport)


async def _connected(reactor: IReactorTime, endpoint: IStreamClientEndpoint, kind: type[P]) -> P:
    connecting = endpoint.connect(Factory.forProtocol(kind))
    return cast(P, await connecting.addTimeout(LOOK_SECONDS, reactor, _late))


def _late(_: object, seconds: float) -> NoReturn:
    # endpoints and agents fail with errors of their own when they are cancelled
    raise TimeoutError(seconds, "Deferred")


def _unreachable(error: BaseException, place: str, start: str) -> Finding:
    if isinstance(error, DNSLookupError):
        return fault(f"the host of {place} has no address", "correct the host, or the name service of this machine")
    if isinstance(error, ConnectionRefusedError):
        return fault(f"nothing listens at {place}", f"{start}, or correct host and port")
    if isinstance(error, TimeoutError | ConnectTimeout):
        said = f"{place} does not answer within {LOOK_SECONDS:.0f} seconds"
        return fault(said, "correct host and port, or open the way there: a firewall that drops does that")
    return fault(f"{place} cannot be reached ({error})", "correct host and port, or the network of this machine")
