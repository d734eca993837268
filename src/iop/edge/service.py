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
from iop.core.pool import Pool
from iop.edge.api import Api
from iop.edge.attempts import Attempts
from iop.edge.commands import Commands
from iop.edge.control_link import ControlLink
from iop.edge.door import Door
from iop.edge.events import Events, Notes
from iop.edge.leases import Leases
from iop.edge.metrics import EdgeMetrics
from iop.edge.nodes import Nodes
from iop.edge.operations import Operations
from iop.edge.projections import Projections
from iop.edge.revocation import Revocation
from iop.edge.status import Status
from iop.errors import ControlPlaneUnavailable
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
from iop.wire.dialect import CONTROL, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory

    from iop.core.projection import Projection
    from iop.edge.config import EdgeConfig
    from iop.interfaces import IClock
    from iop.process.role import IReactor

#: What ``/readyz`` says.
NO_PROJECTION: Final = "the Control Plane was not reached yet, or not for too long"
NO_CONTROL_PLANE: Final = "the Control Plane is not connected; only leases that are held still serve"
NO_NODE: Final = "no Node is ready"
DRAINED: Final = "an operator drained this Edge; edge.resume has it serve again"
#: That it has at most: callers, Nodes, the Control Plane.
CONNECTIONS: Final = HttpLimits().connections + CONNECTIONS_LIMIT + 1


@dataclass(frozen=True, slots=True)
class _Files:
    """What an Edge reads from its files, all of it good; ``api`` is None where that is plain HTTP."""

    nodes: ServerConnections
    control: ClientConnections
    api: ServerConnections | None


@dataclass(frozen=True, slots=True)
class _Wires:
    """Where files take effect."""

    node_tls: ReloadableServer
    nodes: PeerFactory
    control_tls: ReloadableClient
    control: PeerFactory
    api_tls: ReloadableServer | None


@implementer(IRole, IReloading)
class Edge:
    """The Edge role: the model API, the node wire, and the one connection to the Control Plane."""

    def __init__(self, config: EdgeConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry) -> None:
        limits, deployment = config.limits, config.deployment
        self.name = config.edge.name
        self._config = config
        self._clock = clock
        self._reactor = reactor
        self._ports: list[IListeningPort] = []
        self._wires: _Wires | None = None
        self._dialler: Dialler | None = None
        metrics = EdgeMetrics(registry)
        notes = Notes()
        self._door = Door()
        self._events = Events(notes, clock)
        self._projections = Projections(config.state.directory, deployment.id, self.name, clock, self._applied)
        pool = Pool(clock, limits.queue_length, limits.reconnect_seconds)
        catalogue = {node.name: node for node in config.nodes}
        self._nodes = Nodes(
            self.name,
            deployment.trust_domain,
            catalogue,
            pool,
            clock,
            self._events,
            limits.run_window_bytes,
            lost=self._node_lost,
            proved=self._key_proved,
        )
        operations = Operations(
            config.nodes,
            self._nodes,
            pool,
            self._door,
            self._events,
            clock,
            flush=self._flush,
            resync=self._resync,
            reload=self._read_again,
        )
        self._commands = Commands(operations, notes, clock, managed=config.credential_plane.enabled)
        self._link = ControlLink(
            self._projections,
            clock,
            metrics,
            deployment=deployment.id,
            staleness_seconds=limits.staleness_seconds,
            lease_call_seconds=limits.lease_call_seconds,
            settled=self._settled,
            status=Status(self.name, config.nodes, self._nodes, pool, self._door, self._events),
            notes=notes,
            commands=self._commands,
        )
        self._leases = Leases(self._link.acquire, clock, metrics, deployment.id, self.name, limits.lease_cache_entries)
        self._revocation = Revocation(self._leases, clock, limits.node_word_seconds)
        metrics.watch(self._link, self._nodes, pool, config.nodes)
        attempts = Attempts(
            self._link,
            pool,
            self._nodes,
            self._leases,
            self._revocation,
            clock,
            metrics,
            request_seconds=limits.request_seconds,
            queue_seconds=limits.queue_seconds,
            long_context_bytes=limits.long_context_bytes,
        )
        http = HttpLimits(
            headers=limits.header_bytes,
            body=limits.body_bytes,
            body_total=limits.body_total_bytes,
            receive_seconds=limits.receive_seconds,
        )
        self._http = HttpServerFactory(
            Api(self._link, attempts, self._door, clock, metrics, limits.body_bytes), clock, http
        )
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
        wires.control_tls.current = files.control
        if wires.api_tls is not None and files.api is not None:
            wires.api_tls.current = files.api
        wires.nodes.reverify()
        wires.control.reverify()

    def reload_with(self, reload: Callable[[], Deferred[None]]) -> None:
        """What ``config.reload`` does."""
        self._reload = reload

    def not_ready(self) -> list[str]:
        """Why a request would be refused now, whoever sent it."""
        reasons = [DRAINED] if self._door.is_closed else []
        try:
            self._link.projection()
        except ControlPlaneUnavailable:
            reasons.append(NO_PROJECTION)
        else:
            if not self._link.ready:
                reasons.append(NO_CONTROL_PLANE)
        if not self._nodes.ready_names:
            reasons.append(NO_NODE)
        return reasons

    def drain(self) -> Deferred[None]:
        """Stop listening, let requests finish, then leave Nodes and Control Plane."""
        return Deferred.fromCoroutine(self._drain())

    def _read(self) -> _Files:
        config, domain = self._config, self._config.deployment.trust_domain
        check_own(config.tls.certificate, trust_domain=domain, role=Role.EDGE, name=self.name)
        files = TlsFiles(config.tls.certificate, config.tls.key, config.tls.trust)
        control = mutual_client(
            files,
            trust_domain=domain,
            role=Role.CONTROL_PLANE,
            name=config.control_plane.name,
            server_name=config.control_plane.server_name,
        )
        api = config.api
        web = None if api.certificate is None or api.key is None else web_server(api.certificate, api.key)
        return _Files(mutual_server(files, trust_domain=domain, accepts=Role.NODE), control, web)

    def _prepare(self) -> None:
        files, clock = self._read(), self._clock
        node_tls, control_tls = ReloadableServer(files.nodes), ReloadableClient(files.control)
        self._wires = _Wires(
            node_tls,
            PeerFactory(
                RUNTIME,
                initiator=False,
                application=self._nodes.application,
                clock=clock,
                identify=node_tls.identify,
            ),
            control_tls,
            PeerFactory(
                CONTROL,
                initiator=True,
                application=self._link.application,
                clock=clock,
                identify=control_tls.identify,
            ),
            None if files.api is None else ReloadableServer(files.api),
        )
        self._projections.load()

    def _prepared(self) -> _Wires:
        if self._wires is None:
            raise RuntimeError("prepare() comes first")
        return self._wires

    async def _listen(self) -> dict[str, str]:
        config, wires = self._config, self._prepared()
        dialler = self._dialler = Dialler(
            wrapClientTLS(wires.control_tls, clientFromString(self._reactor, config.control_plane.endpoint)),
            wires.control,
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
        dialler.startService()
        return addresses

    async def _drain(self) -> None:
        self._events.edge_stopping()
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        await self._http.drain()
        self._commands.stop()
        self._nodes.drain()
        self._link.drain()
        if self._dialler is not None and self._dialler.running:
            await self._dialler.stopService()

    def _applied(self, projection: Projection) -> Deferred[int]:
        return self._revocation.applied(projection)

    def _node_lost(self, node: str) -> None:
        self._leases.forget_node(node)

    def _key_proved(self, node: str, public_key: bytes) -> None:
        self._leases.forget_key(node, keep=public_key)

    def _flush(self) -> int:
        return self._leases.flush()

    async def _resync(self) -> None:
        await self._link.resync()

    def _read_again(self) -> Deferred[None]:
        return self._reload()

    def _settled(self) -> None:
        self._events.edge_ready()
        if self._dialler is not None:
            self._dialler.settled()
