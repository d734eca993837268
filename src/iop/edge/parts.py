"""What an Edge is made of, wired on whatever clock it is given: no files, no listeners, no reactor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from iop.core.pool import Pool
from iop.edge.api import Api
from iop.edge.attempts import Attempts
from iop.edge.commands import Commands
from iop.edge.control_link import ControlLink
from iop.edge.door import Door
from iop.edge.events import Events, Notes
from iop.edge.leases import Leases
from iop.edge.legacy import LegacyLink, NoLeases, projection_of
from iop.edge.metrics import EdgeMetrics
from iop.edge.nodes import Nodes
from iop.edge.operations import Operations
from iop.edge.projections import Projections
from iop.edge.revocation import Revocation
from iop.edge.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from iop.core.projection import Projection
    from iop.edge.authority import ILeases, ILink
    from iop.edge.config import EdgeConfig
    from iop.interfaces import IClock

#: What ``/readyz`` says.
NO_NODE: Final = "no Node is ready"
DRAINED: Final = "an operator drained this Edge; edge.resume has it serve again"


class Parts:
    """An Edge without its process.

    :param settled: called whenever a connection to the Control Plane became ready.
    :param reload: reads the files again, for the command that asks for it.
    :ivar link: the way to the Control Plane, or what stands for it in legacy mode.
    :ivar api: what answers callers.
    """

    link: ILink
    leases: ILeases

    def __init__(
        self,
        config: EdgeConfig,
        clock: IClock,
        registry: CollectorRegistry,
        *,
        settled: Callable[[], object],
        reload: Callable[[], Deferred[None]],
    ) -> None:
        limits = config.limits
        self._config = config
        self._clock = clock
        self._tell_settled = settled
        metrics = EdgeMetrics(registry)
        notes = Notes()
        self.door = Door()
        self.events = Events(notes, clock)
        pool = Pool(clock, limits.queue_length, limits.reconnect_seconds)
        self.nodes = Nodes(
            config.edge.name,
            config.deployment.trust_domain,
            {node.name: node for node in config.nodes},
            pool,
            clock,
            self.events,
            limits.run_window_bytes,
            lost=self._node_lost,
            proved=self._key_proved,
        )
        operations = Operations(
            config.nodes,
            self.nodes,
            pool,
            self.door,
            self.events,
            clock,
            flush=self._flush,
            resync=self._resync,
            reload=reload,
        )
        self.commands = Commands(operations, notes, clock, managed=config.credential_plane.enabled)
        status = Status(config.edge.name, config.nodes, self.nodes, pool, self.door, self.events)
        wire = self._managed if config.credential_plane.enabled else self._legacy
        self.link, self.leases = wire(metrics, status, notes)
        self.revocation = Revocation(self.leases, clock, limits.node_word_seconds)
        metrics.watch(self.link, self.nodes, pool, config.nodes)
        attempts = Attempts(
            self.link,
            pool,
            self.nodes,
            self.leases,
            self.revocation,
            clock,
            metrics,
            request_seconds=limits.request_seconds,
            queue_seconds=limits.queue_seconds,
            long_context_bytes=limits.long_context_bytes,
        )
        self.api = Api(self.link, attempts, self.door, clock, metrics, limits.body_bytes)

    def not_ready(self) -> list[str]:
        """Why a request would be refused now, whoever sent it."""
        reasons = [DRAINED] if self.door.is_closed else []
        reasons += self.link.missing()
        if not self.nodes.ready_names:
            reasons.append(NO_NODE)
        return reasons

    def _managed(self, metrics: EdgeMetrics, status: Status, notes: Notes) -> tuple[ILink, ILeases]:
        config, limits, deployment = self._config, self._config.limits, self._config.deployment.id
        link = ControlLink(
            Projections(
                config.state_directory, deployment, config.edge.name, self._clock, self._applied, self._unanswered
            ),
            self._clock,
            metrics,
            deployment=deployment,
            staleness_seconds=limits.staleness_seconds,
            lease_call_seconds=limits.lease_call_seconds,
            settled=self._settled,
            status=status,
            notes=notes,
            commands=self.commands,
        )
        cached = limits.lease_cache_entries
        return link, Leases(link.acquire, self._clock, metrics, deployment, config.edge.name, cached)

    def _legacy(self, metrics: EdgeMetrics, status: Status, notes: Notes) -> tuple[ILink, ILeases]:
        config = self._config
        link = LegacyLink(
            projection_of(config.callers, config.nodes),
            metrics,
            deployment=config.deployment.id,
            edge=config.edge.name,
            settled=self._settled,
            status=status,
            notes=notes,
            commands=self.commands,
        )
        return link, NoLeases()

    def _settled(self) -> None:
        self.events.edge_ready()
        self._tell_settled()

    def _applied(self, projection: Projection) -> Deferred[int]:
        return self.revocation.applied(projection)

    def _unanswered(self) -> int:
        return self.revocation.unanswered

    # what is wired before there is what it leads to

    def _node_lost(self, node: str) -> None:
        self.leases.forget_node(node)

    def _key_proved(self, node: str, public_key: bytes) -> None:
        self.leases.forget_key(node, keep=public_key)
        self.revocation.proved(node, public_key)

    def _flush(self) -> int:
        return self.leases.flush()

    async def _resync(self) -> None:
        await self.link.resync()
