"""The Edge as a role: what it is made of, where it listens and dials, how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, execute, maybeDeferred
from twisted.internet.endpoints import clientFromString, wrapClientTLS
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from iop.certificates import check_own
from iop.edge.parts import Parts
from iop.net.dial import Dialler
from iop.net.http1 import HttpLimits, HttpServerFactory
from iop.net.peer import CONNECTIONS_LIMIT, PeerFactory
from iop.net.tls import (
    ClientConnections,
    ReloadableClient,
    ReloadableServer,
    ServerConnections,
    TlsFiles,
    mutual_client,
    mutual_server,
    web_server,
)
from iop.process.listen import bound_address, listen
from iop.process.role import IReloading, IRole
from iop.units import Role
from iop.wire.dialect import RUNTIME

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory

    from iop.edge.config import EdgeConfig
    from iop.interfaces import IClock
    from iop.process.role import IReactor

#: That it has at most: callers, Nodes, the Control Plane.
CONNECTIONS: Final = HttpLimits().connections + CONNECTIONS_LIMIT + 1


@dataclass(frozen=True, slots=True)
class _Files:
    """What an Edge reads from its files, all of it good.

    ``control`` is None without a Control Plane, ``api`` where that is plain HTTP.
    """

    nodes: ServerConnections
    control: ClientConnections | None
    api: ServerConnections | None


@dataclass(frozen=True, slots=True)
class _Control:
    """The wire to the Control Plane."""

    tls: ReloadableClient
    peers: PeerFactory


@dataclass(frozen=True, slots=True)
class _Wires:
    """Where files take effect."""

    node_tls: ReloadableServer
    nodes: PeerFactory
    control: _Control | None
    api_tls: ReloadableServer | None


@implementer(IRole, IReloading)
class Edge:
    """The Edge role: the model API, the node wire, and the one connection to the Control Plane."""

    def __init__(self, config: EdgeConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry) -> None:
        limits = config.limits
        self.name = config.edge.name
        self._config = config
        self._clock = clock
        self._reactor = reactor
        self._ports: list[IListeningPort] = []
        self._wires: _Wires | None = None
        self._dialler: Dialler | None = None
        self._parts = Parts(config, clock, registry, settled=self._settled, reload=self._read_again)
        http = HttpLimits(
            headers=limits.header_bytes,
            body=limits.body_bytes,
            body_total=limits.body_total_bytes,
            receive_seconds=limits.receive_seconds,
        )
        self._http = HttpServerFactory(self._parts.api, clock, http)
        self._reload: Callable[[], Deferred[None]] = lambda: execute(self.reload)
        self.connections = CONNECTIONS

    def prepare(self) -> Deferred[None]:
        """Read the certificates, and which projection an earlier process had in force."""
        return execute(self._prepare)

    def listen(self) -> Deferred[dict[str, str]]:
        """Serve callers and Nodes, and dial the Control Plane."""
        return Deferred.fromCoroutine(self._listen())

    def reload(self) -> None:
        """Read certificates and trust again."""
        wires, files = self._prepared(), self._read()
        wires.node_tls.current = files.nodes
        if wires.control is not None and files.control is not None:
            wires.control.tls.current = files.control
        if wires.api_tls is not None and files.api is not None:
            wires.api_tls.current = files.api
        wires.nodes.reverify()
        if wires.control is not None:
            wires.control.peers.reverify()

    def reload_with(self, reload: Callable[[], Deferred[None]]) -> None:
        """What ``config.reload`` does."""
        self._reload = reload

    def not_ready(self) -> list[str]:
        """Why a request would be refused now, whoever sent it."""
        return self._parts.not_ready()

    def drain(self) -> Deferred[None]:
        """Stop listening, let requests finish, then leave Nodes and Control Plane."""
        return Deferred.fromCoroutine(self._drain())

    def _read(self) -> _Files:
        config, domain = self._config, self._config.deployment.trust_domain
        check_own(config.tls.certificate, trust_domain=domain, role=Role.EDGE, name=self.name)
        files = TlsFiles(config.tls.certificate, config.tls.key, config.tls.trust)
        dialled = config.control_plane
        control = None
        if dialled is not None:
            control = mutual_client(
                files,
                trust_domain=domain,
                role=Role.CONTROL_PLANE,
                name=dialled.name,
                server_name=dialled.server_name,
            )
        api = config.api
        web = None if api.certificate is None or api.key is None else web_server(api.certificate, api.key)
        return _Files(mutual_server(files, trust_domain=domain, accepts=Role.NODE), control, web)

    def _prepare(self) -> None:
        files, clock = self._read(), self._clock
        node_tls = ReloadableServer(files.nodes)
        self._wires = _Wires(
            node_tls,
            PeerFactory(
                RUNTIME,
                initiator=False,
                application=self._parts.nodes.application,
                clock=clock,
                identify=node_tls.identify,
            ),
            None if files.control is None else self._control(files.control),
            None if files.api is None else ReloadableServer(files.api),
        )
        self._parts.link.load()

    def _control(self, connections: ClientConnections) -> _Control:
        link, tls = self._parts.link, ReloadableClient(connections)
        peers = PeerFactory(
            link.dialect, initiator=True, application=link.application, clock=self._clock, identify=tls.identify
        )
        return _Control(tls, peers)

    def _prepared(self) -> _Wires:
        if self._wires is None:
            raise RuntimeError("prepare() comes first")
        return self._wires

    async def _listen(self) -> dict[str, str]:
        config, wires = self._config, self._prepared()
        if wires.control is not None and config.control_plane is not None:
            self._dialler = Dialler(
                wrapClientTLS(wires.control.tls, clientFromString(self._reactor, config.control_plane.endpoint)),
                wires.control.peers,
                reactor=self._reactor,
                random=SystemRandom().random,
            )
        web: IProtocolFactory = self._http
        if wires.api_tls is not None:
            web = TLSMemoryBIOFactory(wires.api_tls, False, self._http)
        addresses: dict[str, str] = {}
        for key, endpoint, factory in (
            ("node_wire", config.node_wire.listen, TLSMemoryBIOFactory(wires.node_tls, False, wires.nodes)),
            ("api", config.api.listen, web),
        ):
            port = await listen(self._reactor, endpoint, factory, f"[{key}] listen")
            self._ports.append(port)
            addresses[key] = bound_address(port)
        if self._dialler is not None:
            self._dialler.startService()
        return addresses

    async def _drain(self) -> None:
        self._parts.events.edge_stopping()
        # now, since what follows may be cut short by the deadline of the process
        self._parts.commands.stop()
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        await self._http.drain()
        self._parts.nodes.drain()
        self._parts.link.drain()
        if self._dialler is not None and self._dialler.running:
            await self._dialler.stopService()

    def _read_again(self) -> Deferred[None]:
        return self._reload()

    def _settled(self) -> None:
        if self._dialler is not None:
            self._dialler.settled()
