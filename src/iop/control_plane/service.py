"""The Control Plane as a role: what it opens, where it listens, how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from iop.certificates import check_own, read_certificates
from iop.control_plane.credential_api import body_limit
from iop.control_plane.metrics import ControlPlaneMetrics
from iop.control_plane.plane import Keys, Plane, build_plane
from iop.control_plane.problems import refuse_http
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring
from iop.errors import BadConfig
from iop.net.guard import GuardLimits, guarded_site
from iop.net.peer import PeerFactory
from iop.net.tls import TlsFiles, mutual_server, peer_identity, web_server
from iop.process.listen import bound_address, listen
from iop.process.role import IRole
from iop.store.lock import ControlPlaneLock
from iop.store.sqlite import open_sqlite
from iop.units import Role
from iop.wire.dialect import CONTROL

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from twisted.internet.interfaces import IListeningPort

    from iop.control_plane.config import ControlPlaneConfig
    from iop.interfaces import IClock
    from iop.net.http1 import HttpServerFactory
    from iop.process.role import IReactor


@implementer(IRole)
class ControlPlane:
    """The Control Plane role: an edge wire, the credential HTTPS API, and the store behind both."""

    def __init__(
        self, config: ControlPlaneConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry
    ) -> None:
        self.name = config.control_plane.name
        self._config = config
        self._clock = clock
        self._reactor = reactor
        self._metrics = ControlPlaneMetrics(registry)
        self._lock: ControlPlaneLock | None = None
        self._plane: Plane | None = None
        self._site: HttpServerFactory | None = None
        self._ports: list[IListeningPort] = []

    def prepare(self) -> Deferred[None]:
        """Take the lock, read the keys, open the store, end the sessions of a process that is no more."""
        return Deferred.fromCoroutine(self._prepare())

    def listen(self) -> Deferred[dict[str, str]]:
        """Serve Edges and the credential HTTPS API."""
        return Deferred.fromCoroutine(self._listen())

    def not_ready(self) -> list[str]:
        """Why no lease or mutation would succeed now."""
        if self._plane is None or not self._ports:
            return ["the Control Plane is starting"]
        trouble = self._plane.watch.trouble
        return [f"the store does not answer: {trouble}"] if trouble else []

    def drain(self) -> Deferred[None]:
        """Close the listeners, let what is in flight finish, close the store, give the lock back."""
        return Deferred.fromCoroutine(self._drain())

    async def _prepare(self) -> None:
        config = self._config
        check_own(
            config.edge_wire.certificate,
            trust_domain=config.deployment.trust_domain,
            role=Role.CONTROL_PLANE,
            name=self.name,
        )
        self._lock = ControlPlaneLock.acquire(config.store.path)
        keys = Keys(
            keyring=Keyring.load(config.keys.keyring),
            issuer=Issuer.load(config.keys.issuer),
            pinned=PinnedIssuers.load(config.keys.pinned_issuers),
            verifier=AttestationVerifier(
                read_certificates(config.edge_wire.trust), config.deployment.trust_domain, config.lease.skew_seconds
            ),
        )
        if keys.issuer.key_id not in dict(keys.pinned):
            raise BadConfig(
                f"[keys] pinned_issuers = {config.keys.pinned_issuers}: the issuer key is not in it",
                hint="no Node would accept a lease; give the public set that `iop issuer init` wrote with this key",
            )
        store = await open_sqlite(config.store.path, config.deployment.id, self._reactor, self._clock.wall_ms)
        self._plane = build_plane(config, store, keys, self._clock, self._metrics)
        await store.edge_sessions.end_all(self._clock.wall_ms())

    async def _listen(self) -> dict[str, str]:
        plane, wire, https = self._plane, self._config.edge_wire, self._config.credential_https
        if plane is None:
            raise RuntimeError("prepare() comes first")
        edges = PeerFactory(
            CONTROL, initiator=False, application=plane.edges.application, clock=self._clock, identify=peer_identity
        )
        mutual = mutual_server(
            TlsFiles(wire.certificate, wire.key, wire.trust),
            trust_domain=self._config.deployment.trust_domain,
            accepts=Role.EDGE,
        )
        site = self._site = guarded_site(plane.api.resource(), self._clock, GuardLimits(), body_limit, refuse_http)
        web = web_server(https.certificate, https.key)
        addresses: dict[str, str] = {}
        for key, endpoint, factory in (
            ("edge_wire", wire.listen, TLSMemoryBIOFactory(mutual, False, edges)),
            ("credential_https", https.listen, TLSMemoryBIOFactory(web, False, site)),
        ):
            port = await listen(self._reactor, endpoint, factory, f"[{key}] listen")
            self._ports.append(port)
            addresses[key] = bound_address(port)
        plane.watch.start()
        return addresses

    async def _drain(self) -> None:
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        if self._site is not None:
            # first, because a mutation is answered only once the Edges followed it
            await self._site.drain()
        if self._plane is not None:
            self._plane.watch.stop()
            await self._plane.edges.drain()
            await self._plane.store.close()
        if self._lock is not None:
            self._lock.release()
