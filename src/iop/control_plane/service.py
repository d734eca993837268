"""The Control Plane as a role: what it opens, where it listens, how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from iop.certificates import check_own, read_certificates
from iop.control_plane.api_request import body_limit
from iop.control_plane.metrics import ControlPlaneMetrics
from iop.control_plane.plane import Keys, Plane, build_plane
from iop.control_plane.problems import refuse_http
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring
from iop.errors import BadConfig
from iop.net.guard import GuardLimits, guarded_site
from iop.net.peer import CONNECTIONS_LIMIT, PeerFactory
from iop.net.tls import ReloadableServer, ServerConnections, TlsFiles, mutual_server, web_server
from iop.process.listen import bound_address, listen, listen_unix
from iop.process.role import IRole
from iop.store.lock import ControlPlaneLock
from iop.store.sqlite import open_sqlite
from iop.units import Role
from iop.wire.dialect import CONTROL

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client import CollectorRegistry
    from twisted.internet.interfaces import IListeningPort

    from iop.control_plane.config import ControlPlaneConfig
    from iop.interfaces import IClock
    from iop.net.http1 import HttpServerFactory
    from iop.process.role import IReactor

_API_LIMITS: Final = GuardLimits()
#: How ``/readyz`` begins to say that nothing can be changed or leased.
NO_STORE: Final = "the store does not answer"
#: That it has at most: Edges, and callers of the credential HTTPS API.
CONNECTIONS: Final = CONNECTIONS_LIMIT + _API_LIMITS.connections


@dataclass(frozen=True, slots=True)
class _Files:
    """What a Control Plane reads from its files at the start and again at every reload, all of it good."""

    edges: ServerConnections
    web: ServerConnections
    pinned: PinnedIssuers
    verifier: AttestationVerifier


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a prepared Control Plane is made of."""

    plane: Plane
    issuer: Issuer
    edge_tls: ReloadableServer
    edges: PeerFactory
    web_tls: ReloadableServer


def read_pinned(path: Path, issuer: Issuer) -> PinnedIssuers:
    """The public set that Nodes pin, with this Control Plane's own key in it.

    :raises BadConfig: if the key is not in it, or it is no such set.
    :raises FileRefused: if it cannot be read.
    """
    pinned = PinnedIssuers.load(path)
    if issuer.key_id not in dict(pinned):
        raise BadConfig(
            f"[keys] pinned_issuers = {path}: the issuer key is not in it",
            hint="no Node would accept a lease; give the public set that `iop issuer init` wrote with this key",
        )
    return pinned


@implementer(IRole)
class ControlPlane:
    """The Control Plane role: an edge wire, the credential HTTPS API, and the store behind both."""

    def __init__(
        self, config: ControlPlaneConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry
    ) -> None:
        self.name = config.control_plane.name
        self.connections = CONNECTIONS
        self._config = config
        self._clock = clock
        self._reactor = reactor
        self._metrics = ControlPlaneMetrics(registry)
        self._lock: ControlPlaneLock | None = None
        self._parts: _Parts | None = None
        self._site: HttpServerFactory | None = None
        self._ports: list[IListeningPort] = []

    def prepare(self) -> Deferred[None]:
        """Take the lock, read the keys, open the store, end the sessions of a process that is no more."""
        return Deferred.fromCoroutine(self._prepare())

    def listen(self) -> Deferred[dict[str, str]]:
        """Serve Edges and the credential HTTPS API."""
        return Deferred.fromCoroutine(self._listen())

    def reload(self) -> None:
        """Read certificates, trust and pinned issuers again, not keyring and issuer key."""
        parts = self._prepared()
        files = self._read(parts.issuer)
        parts.edge_tls.current = files.edges
        parts.web_tls.current = files.web
        parts.plane.trust(files.pinned, files.verifier)
        parts.edges.reverify()

    def not_ready(self) -> list[str]:
        """Why no lease or mutation would succeed now."""
        if self._parts is None or not self._ports:
            return ["the Control Plane is starting"]
        trouble = self._parts.plane.watch.trouble
        return [f"{NO_STORE}: {trouble}"] if trouble else []

    def drain(self) -> Deferred[None]:
        """Close the listeners, let what is in flight finish, close the store, give the lock back."""
        return Deferred.fromCoroutine(self._drain())

    def _read(self, issuer: Issuer) -> _Files:
        config, domain = self._config, self._config.deployment.trust_domain
        wire, https, keys = config.edge_wire, config.credential_https, config.keys
        check_own(wire.certificate, trust_domain=domain, role=Role.CONTROL_PLANE, name=self.name)
        pinned = read_pinned(keys.pinned_issuers, issuer)
        files = TlsFiles(wire.certificate, wire.key, wire.trust)
        return _Files(
            mutual_server(files, trust_domain=domain, accepts=Role.EDGE),
            web_server(https.certificate, https.key),
            pinned,
            AttestationVerifier(read_certificates(wire.trust), domain, config.lease.skew_seconds),
        )

    async def _prepare(self) -> None:
        config, clock = self._config, self._clock
        self._lock = ControlPlaneLock.acquire(config.store.path)
        keyring, issuer = Keyring.load(config.keys.keyring), Issuer.load(config.keys.issuer)
        files = self._read(issuer)
        store = await open_sqlite(config.store.path, config.deployment.id, self._reactor, clock.wall_ms)
        plane = build_plane(config, store, Keys(keyring, issuer, files.pinned, files.verifier), clock, self._metrics)
        edge_tls = ReloadableServer(files.edges)
        edges = PeerFactory(
            CONTROL, initiator=False, application=plane.edges.application, clock=clock, identify=edge_tls.identify
        )
        self._parts = _Parts(plane, issuer, edge_tls, edges, ReloadableServer(files.web))
        await store.edge_sessions.end_all(clock.wall_ms())

    def _prepared(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("prepare() comes first")
        return self._parts

    async def _listen(self) -> dict[str, str]:
        parts, config = self._prepared(), self._config
        resource = parts.plane.api.resource()
        site = self._site = guarded_site(resource, self._clock, _API_LIMITS, body_limit, refuse_http)
        addresses: dict[str, str] = {}
        for key, endpoint, factory in (
            ("edge_wire", config.edge_wire.listen, TLSMemoryBIOFactory(parts.edge_tls, False, parts.edges)),
            ("credential_https", config.credential_https.listen, TLSMemoryBIOFactory(parts.web_tls, False, site)),
        ):
            port = await listen(self._reactor, endpoint, factory, f"[{key}] listen")
            self._ports.append(port)
            addresses[key] = bound_address(port)
        if config.operator is not None:
            site = parts.plane.operator.site(self._clock)
            self._ports.append(listen_unix(self._reactor, config.operator.socket, site, "[operator] socket"))
        parts.plane.watch.start()
        return addresses

    async def _drain(self) -> None:
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        if self._site is not None:
            # first, because a mutation is answered only once the Edges followed it
            await self._site.drain()
        if self._parts is not None:
            plane = self._parts.plane
            plane.watch.stop()
            await plane.edges.drain()
            await plane.store.close()
        if self._lock is not None:
            self._lock.release()
