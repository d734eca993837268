"""The Node as a role: what it reads, whom it dials, how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import SystemRandom
from typing import Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, execute
from twisted.internet.endpoints import clientFromString, wrapClientTLS
from zope.interface import implementer

from iop.certificates import check_own
from iop.crypto.issuer import PinnedIssuers
from iop.crypto.node_keys import NodeKeys
from iop.interfaces import IClock
from iop.net.dial import Dialler
from iop.net.peer import PeerFactory
from iop.net.tls import ClientConnections, ReloadableClient, TlsFiles, mutual_client
from iop.net.upstream import UpstreamLimits
from iop.node.attest import Attester
from iop.node.config import NodeConfig
from iop.node.leases import IGrants, Leaseless, Leases
from iop.node.link import EdgeLink
from iop.node.metrics import NodeMetrics
from iop.node.targets import Target, build_targets, read_trust
from iop.process.role import IReactor, IRole
from iop.units import Identity, Role
from iop.wire.dialect import RUNTIME

#: What ``/readyz`` says.
NOT_REGISTERED: Final = "this Node is not registered at its Edge"


@dataclass(frozen=True, slots=True)
class _Files:
    """What a Node reads from its files, all of it good; ``pinned`` is None in legacy mode."""

    edge: ClientConnections
    attest: Attester
    pinned: PinnedIssuers | None
    targets: Mapping[str, ClientConnections]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a prepared Node is made of."""

    tls: ReloadableClient
    peers: PeerFactory
    grants: IGrants
    link: EdgeLink
    targets: Mapping[str, Target]
    dialler: Dialler


def connections_of(config: NodeConfig) -> int:
    """Connections that a Node has at most: to the Edge, and to each target."""
    return 1 + len(config.targets) * UpstreamLimits().connections


@implementer(IRole)
class NodeRole:
    """The Node role: one dialled Edge, and the targets it calls for it. It listens nowhere."""

    def __init__(self, config: NodeConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry) -> None:
        self.name = config.node.name
        self.connections = connections_of(config)
        self._config = config
        self._clock = clock
        self._reactor = reactor
        self._metrics = NodeMetrics(registry)
        self._keys = NodeKeys(clock)
        self._edge = Identity(config.deployment.trust_domain, Role.EDGE, config.edge.name)
        self._parts: _Parts | None = None

    def prepare(self) -> Deferred[None]:
        """Read certificates, pinned issuers and trust files."""
        return execute(self._prepare)

    def listen(self) -> Deferred[dict[str, str]]:
        """Begin to dial the Edge."""
        return execute(self._listen)

    def reload(self) -> None:
        """Read certificate, pinned issuers and trust files again; the Edge gets the key attested by the certificate."""
        parts, files = self._prepared(), self._read()
        parts.tls.current = files.edge
        if isinstance(parts.grants, Leases) and files.pinned is not None:
            parts.grants.pinned = files.pinned
        for name, connections in files.targets.items():
            parts.targets[name].renew(connections)
        parts.peers.reverify()
        parts.link.renew(files.attest)

    def not_ready(self) -> list[str]:
        """Whether the Edge may dispatch to this Node."""
        registered = self._parts is not None and self._parts.link.ready
        return [] if registered else [NOT_REGISTERED]

    def drain(self) -> Deferred[None]:
        """Refuse new runs, let the open ones end, close the connection, destroy the keys."""
        return Deferred.fromCoroutine(self._drain())

    def _read(self) -> _Files:
        config, edge = self._config, self._edge
        check_own(config.tls.certificate, trust_domain=edge.trust_domain, role=Role.NODE, name=self.name)
        files = TlsFiles(config.tls.certificate, config.tls.key, config.tls.trust)
        mutual = mutual_client(
            files,
            trust_domain=edge.trust_domain,
            role=edge.role,
            name=edge.name,
            server_name=config.edge.server_name,
        )
        attest = Attester.load(files, edge, self.name)
        # a certificate key that cannot attest is found here, not at the Edge
        attest(self._keys.current())
        pinned = None if config.issuers is None else PinnedIssuers.load(config.issuers.pinned)
        return _Files(mutual, attest, pinned, read_trust(config.targets))

    def _prepare(self) -> None:
        config, clock, files = self._config, self._clock, self._read()
        grants = self._grants(files.pinned)
        targets = build_targets(config.targets, files.targets, config.limits, clock, self._reactor)
        link = EdgeLink(
            edge=self._edge,
            keys=self._keys,
            attest=files.attest,
            grants=grants,
            targets=targets,
            clock=clock,
            metrics=self._metrics,
            settled=self._settled,
        )
        self._metrics.watch(link)
        tls = ReloadableClient(files.edge)
        peers = PeerFactory(RUNTIME, initiator=True, application=link.application, clock=clock, identify=tls.identify)
        endpoint = wrapClientTLS(tls, clientFromString(self._reactor, config.edge.endpoint))
        dialler = Dialler(endpoint, peers, reactor=self._reactor, random=SystemRandom().random)
        self._parts = _Parts(tls, peers, grants, link, targets, dialler)

    def _grants(self, pinned: PinnedIssuers | None) -> IGrants:
        if pinned is None:
            return Leaseless(self.name)
        config = self._config
        return Leases(
            pinned=pinned,
            keys=self._keys,
            clock=self._clock,
            skew_ms=round(config.limits.skew_seconds * 1000),
            deployment_id=config.deployment.id,
            trust_domain=config.deployment.trust_domain,
            node=self.name,
        )

    def _prepared(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("prepare() comes first")
        return self._parts

    def _listen(self) -> dict[str, str]:
        self._prepared().dialler.startService()
        return {}

    def _settled(self) -> None:
        self._prepared().dialler.settled()

    async def _drain(self) -> None:
        if self._parts is not None:
            await self._parts.link.drain()
            if self._parts.dialler.running:
                await self._parts.dialler.stopService()
            for target in self._parts.targets.values():
                target.upstream.close()
        self._keys.dispose()
