"""What a Control Plane counts; every name and every label value of its metrics stands here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge

from iop.process.metrics import Tally
from iop.records import LEASE_REFUSALS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from iop.control_plane.edges import Edges
    from iop.control_plane.generation import GenerationWatch
    from iop.interfaces import IAudit
    from iop.records import Barrier

#: The status of a call that ended before the API answered it.
UNANSWERED: Final = "none"
#: The statuses that the API answers with.
_STATUSES: Final = (200, 201, 400, 401, 403, 404, 405, 409, 412, 415, 428, 429, 500, 503, 504)


class ControlPlaneMetrics:
    """The counters, which whoever has something to count is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.leases_granted = Counter("iop_control_plane_leases_granted", "Leases that were sealed", registry=registry)
        self.lease_refusals = Tally(
            registry,
            "iop_control_plane_leases_refused",
            "Leases refused, by reason",
            "reason",
            LEASE_REFUSALS,
        )
        mutations = Counter(
            "iop_control_plane_mutations", "Committed mutations of the API, by outcome", ["outcome"], registry=registry
        )
        self._complete = mutations.labels("complete")
        self.not_confirmed = mutations.labels("not_confirmed")
        barriers = Counter(
            "iop_control_plane_barrier_edges",
            "Edge sessions that complete mutations found, by what they were to it",
            ["standing"],
            registry=registry,
        )
        self._acknowledged = barriers.labels("acknowledged")
        self._cut_off = barriers.labels("cut_off")
        self._unconfirmed = barriers.labels("unconfirmed")
        self.api_calls = Tally(
            registry,
            "iop_control_plane_api_calls",
            "Calls that reached the credential HTTPS API, by status",
            "status",
            (*map(str, _STATUSES), UNANSWERED),
        )

        self.commands = Tally(
            registry,
            "iop_control_plane_edge_commands",
            "Commands that were sent to Edges, by what came of it",
            "outcome",
            ("accepted", "refused", "unanswered"),
        )
        self.edge_events = Counter("iop_control_plane_edge_events", "Events that Edges told", registry=registry)

    def complete(self, barrier: Barrier) -> None:
        """A mutation reached every Edge."""
        self._complete.inc()
        self._acknowledged.inc(barrier.acknowledged)
        self._cut_off.inc(barrier.cut_off)
        self._unconfirmed.inc(barrier.unconfirmed)

    def watch(self, edges: Edges, watch: GenerationWatch, audit: IAudit) -> None:
        """Have each page read from these what is now."""
        connected = Gauge("iop_control_plane_edges_connected", "Edges that are connected", registry=self._registry)
        connected.set_function(lambda: len(edges.names()))
        generation = Gauge(
            "iop_control_plane_generation",
            "Newest generation published; 0 for none",
            registry=self._registry,
        )
        generation.set_function(lambda: watch.published)
        rows = Gauge("iop_control_plane_audit_rows", "Audit rows, up to the newest known here", registry=self._registry)
        rows.set_function(lambda: audit.newest)
