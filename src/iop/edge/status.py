"""What the Edge tells of itself: its own snapshot of Nodes and providers (rules S1-S4)."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from iop.edge.nodes import CATEGORIES
from iop.wire import control_pb2, runtime_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iop.core.pool import Pool
    from iop.edge.config import NodeTable, ProviderTable
    from iop.edge.door import Door
    from iop.edge.events import Events
    from iop.edge.nodes import Nodes

#: Bytes after which a page ends. A Node has at most 64 providers, which are some 20 KiB.
PAGE_BYTES: Final = 256 * 1024


class Status:
    """The Edge's snapshot of what it is configured with and what of that serves now.

    :param configured: every Node of the catalogue.
    """

    def __init__(
        self, edge: str, configured: Sequence[NodeTable], nodes: Nodes, pool: Pool, door: Door, events: Events
    ) -> None:
        self._edge = edge
        self._tables = sorted(configured, key=lambda table: table.name)
        self._names = [table.name for table in self._tables]
        self._nodes = nodes
        self._pool = pool
        self._door = door
        self._events = events

    def page(self, after: str, generation: int) -> control_pb2.EdgeStatusResponse:
        """The Nodes whose names come after ``after``, as many as go into one page.

        :param generation: of the projection in force.
        """
        answer = control_pb2.EdgeStatusResponse(
            edge_id=self._edge,
            generation=generation,
            event_sequence=self._events.sequence,
            draining=self._door.is_closed,
        )
        size = 0
        for table in self._tables[bisect_right(self._names, after) :]:
            if size >= PAGE_BYTES:
                answer.more = True
                break
            snapshot = self._snapshot(table)
            size += snapshot.ByteSize()
            answer.nodes.append(snapshot)
        return answer

    def _snapshot(self, table: NodeTable) -> control_pb2.EdgeNodeSnapshot:
        return control_pb2.EdgeNodeSnapshot(
            node_id=table.name,
            connected=self._nodes.ready(table.name) is not None and not self._pool.is_held(table.name),
            config=control_pb2.EdgeNodeConfig(providers=[_summary(provider) for provider in table.providers]),
            provider_snapshots=[self._provider(table.name, provider) for provider in table.providers],
        )

    def _provider(self, node: str, provider: ProviderTable) -> runtime_pb2.ProviderSnapshot:
        """A provider of a Node that is not ready, or that its Node refuses, keeps its identity and has zeros (C32).

        One that is there and gets nothing for now has no capacity; what it has goes on, and is counted (S3).
        """
        if not self._pool.offers(node, provider.id):
            return runtime_pb2.ProviderSnapshot(
                provider_id=provider.id,
                category=CATEGORIES[provider.category],
                status=runtime_pb2.PROVIDER_STATUS_UNAVAILABLE,
                health=runtime_pb2.PROVIDER_HEALTH_OFFLINE,
            )
        pool, names = self._pool, (node, provider.id)
        snapshot = runtime_pb2.ProviderSnapshot(
            provider_id=provider.id,
            category=CATEGORIES[provider.category],
            status=runtime_pb2.PROVIDER_STATUS_UNAVAILABLE,
            health=runtime_pb2.PROVIDER_HEALTH_HEALTHY
            if pool.is_reachable(*names)
            else runtime_pb2.PROVIDER_HEALTH_UNREACHABLE,
            in_flight=pool.taken(*names),
            queued=pool.queued(*names),
            long_in_flight=pool.long_taken(*names),
            long_queued=pool.long_queued(*names),
        )
        if pool.gives(*names):
            snapshot.status = runtime_pb2.PROVIDER_STATUS_AVAILABLE
            snapshot.capacity = provider.capacity
            snapshot.long_context_capacity = provider.long_context_capacity
        return snapshot


def _summary(provider: ProviderTable) -> control_pb2.EdgeProviderConfig:
    """What a Node is told of a provider; of models their number (C29)."""
    return control_pb2.EdgeProviderConfig(
        provider_id=provider.id,
        category=CATEGORIES[provider.category],
        profile=provider.profile,
        target=provider.target,
        models=len(provider.models),
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
    )
