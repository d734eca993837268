"""The Node as a role: what it reads, whom it dials, how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import SystemRandom

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, wrapClientTLS
from zope.interface import implementer

from iop.certificates import check_own
from iop.crypto.issuer import PinnedIssuers
from iop.crypto.node_keys import NodeKeys
from iop.interfaces import IClock
from iop.net.dial import Dialler
from iop.net.peer import PeerFactory
from iop.net.tls import TlsFiles, mutual_client, peer_identity
from iop.node.attest import Attester
from iop.node.config import NodeConfig
from iop.node.leases import Leases
from iop.node.link import EdgeLink
from iop.node.metrics import NodeMetrics
from iop.node.targets import Target, build_targets
from iop.process.role import IReactor, IRole
from iop.units import Identity, Role
from iop.wire.dialect import RUNTIME


@implementer(IRole)
class NodeRole:
    """The Node role: one dialled Edge, and the targets it calls for it. It listens nowhere."""

    def __init__(self, config: NodeConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry) -> None:
        self.name = config.node.name
        self._config = config
        self._clock = clock
        self._reactor = reactor
        self._metrics = NodeMetrics(registry)
        self._keys = NodeKeys(clock)
        self._targets: Mapping[str, Target] = {}
        self._link: EdgeLink | None = None
        self._dialler: Dialler | None = None

    def prepare(self) -> Deferred[None]:
        """Read certificates, pinned issuers and trust files."""
        return Deferred.fromCoroutine(self._prepare())

    def listen(self) -> Deferred[dict[str, str]]:
        """Begin to dial the Edge."""
        return Deferred.fromCoroutine(self._listen())

    def not_ready(self) -> list[str]:
        """Whether the Edge may dispatch to this Node."""
        return [] if self._link is not None and self._link.ready else ["this Node is not registered at its Edge"]

    def drain(self) -> Deferred[None]:
        """Refuse new runs, let the open ones end, close the connection, destroy the keys."""
        return Deferred.fromCoroutine(self._drain())

    async def _prepare(self) -> None:
        config, clock = self._config, self._clock
        domain = config.deployment.trust_domain
        check_own(config.tls.certificate, trust_domain=domain, role=Role.NODE, name=self.name)
        edge = Identity(domain, Role.EDGE, config.edge.name)
        files = TlsFiles(config.tls.certificate, config.tls.key, config.tls.trust)
        mutual = mutual_client(
            files, trust_domain=domain, role=edge.role, name=edge.name, server_name=config.edge.server_name
        )
        attest = Attester.load(files, edge, self.name)
        # a certificate key that cannot attest is found here, not at the Edge
        attest(self._keys.current())
        leases = Leases(
            pinned=PinnedIssuers.load(config.issuers.pinned),
            keys=self._keys,
            clock=clock,
            skew_ms=round(config.limits.skew_seconds * 1000),
            deployment_id=config.deployment.id,
            trust_domain=domain,
            node=self.name,
        )
        self._targets = build_targets(config.targets, config.limits, clock, self._reactor)
        link = self._link = EdgeLink(
            edge=edge,
            keys=self._keys,
            attest=attest,
            leases=leases,
            targets=self._targets,
            clock=clock,
            metrics=self._metrics,
            settled=self._settled,
        )
        self._metrics.watch(link)
        peers = PeerFactory(RUNTIME, initiator=True, application=link.application, clock=clock, identify=peer_identity)
        endpoint = wrapClientTLS(mutual, clientFromString(self._reactor, config.edge.endpoint))
        self._dialler = Dialler(endpoint, peers, reactor=self._reactor, random=SystemRandom().random)

    async def _listen(self) -> dict[str, str]:
        if self._dialler is None:
            raise RuntimeError("prepare() comes first")
        self._dialler.startService()
        return {}

    def _settled(self) -> None:
        if self._dialler is not None:
            self._dialler.settled()

    async def _drain(self) -> None:
        if self._link is not None:
            await self._link.drain()
        if self._dialler is not None and self._dialler.running:
            await self._dialler.stopService()
        for target in self._targets.values():
            target.upstream.close()
        self._keys.dispose()
