"""What an Edge counts; every name and every label value of its metrics stands here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge, Histogram

from iop.core.runs import FAILURE_CODES
from iop.edge.openai_errors import CODES
from iop.edge.runs import NODE_LOST
from iop.errors import ControlPlaneUnavailable
from iop.net.http_refusal import REFUSAL_CODES
from iop.process.metrics import HEAD_SECONDS, Tally
from iop.records import LEASE_REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry

    from iop.core.pool import Pool
    from iop.edge.authority import ILink
    from iop.edge.config import NodeTable
    from iop.edge.nodes import Nodes

#: The code of a request whose caller left before it had its whole answer.
CALLER_GONE: Final = "caller_gone"
#: The status of a request whose caller left before it had any answer.
_UNANSWERED: Final = "none"
_TOTAL_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class EdgeMetrics:
    """The counters, which whoever has something to count is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._requests = Tally(
            registry,
            "iop_edge_requests",
            "Requests that are over, by class of the status that was sent",
            "status",
            ("2xx", "4xx", "5xx", _UNANSWERED),
        )
        self._failed = Tally(
            registry,
            "iop_edge_requests_failed",
            "Requests without a whole answer of a provider or of this Edge, by code",
            "code",
            (*CODES, *REFUSAL_CODES, *FAILURE_CODES, NODE_LOST, CALLER_GONE),
        )
        self.attempts = Counter("iop_edge_attempts", "Attempts to give a request to a Node", registry=registry)
        fences = Counter("iop_edge_fences_refused", "Attempts that a fence ended", ["fence"], registry=registry)
        self.fence_1 = fences.labels("1")
        self.fence_2 = fences.labels("2")
        leases = Counter("iop_edge_leases", "Leases that requests were given", ["from"], registry=registry)
        self.leases_acquired = leases.labels("control_plane")
        self.leases_cached = leases.labels("cache")
        self.lease_refusals = Tally(
            registry,
            "iop_edge_leases_refused",
            "Questions for a lease that had none for an answer, by reason",
            "reason",
            (*LEASE_REFUSALS, ControlPlaneUnavailable.code),
        )
        self.answer_bytes = Counter("iop_edge_answer_bytes", "Bytes of answers that Nodes gave", registry=registry)
        self.first_byte_seconds = Histogram(
            "iop_edge_first_byte_seconds",
            "From a whole request to the head of its provider's answer",
            buckets=HEAD_SECONDS,
            registry=registry,
        )
        self.call_seconds = Histogram(
            "iop_edge_call_seconds",
            "From a whole request for a model to its end",
            buckets=_TOTAL_SECONDS,
            registry=registry,
        )
        self.control_plane_sessions = Counter(
            "iop_edge_control_plane_sessions",
            "Connections to the Control Plane that became ready; all but the first are reconnects",
            registry=registry,
        )

    def finished(self, status: int, code: str) -> None:
        """A request is over.

        :param status: what was sent, or 0.
        :param code: why there is no whole answer, or an empty string.
        """
        self._requests.count(f"{status // 100}xx" if status else _UNANSWERED)
        if code:
            self._failed.count(code)

    def watch(self, link: ILink, nodes: Nodes, pool: Pool, catalogue: Iterable[NodeTable]) -> None:
        """Have each page read from these what is now; providers are told apart by their configured names."""
        self._gauge("control_plane_connected", "Whether it accepted this Edge").set_function(lambda: link.ready)
        self._gauge("projection_generation", "Generation in force; 0 for none").set_function(lambda: link.generation)
        self._gauge("nodes_ready", "Nodes that may be given runs").set_function(lambda: len(nodes.ready_names))
        self._gauge("runs_open", "Runs on all Nodes").set_function(lambda: nodes.open_runs)
        running = self._gauge("requests_running", "Requests that hold a place at a provider", "node", "provider")
        waiting = self._gauge("requests_waiting", "Requests in a provider's queue", "node", "provider")
        unreachable = self._gauge(
            "provider_unreachable", "Whether a provider gets nothing but probes", "node", "provider"
        )
        for node in catalogue:
            for provider in node.providers:
                names = (node.name, provider.id)
                running.labels(*names).set_function(partial(pool.taken, *names))
                waiting.labels(*names).set_function(partial(pool.queued, *names))
                unreachable.labels(*names).set_function(partial(_is_unreachable, pool, *names))

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"iop_edge_{name}", documentation, labels, registry=self._registry)


def _is_unreachable(pool: Pool, node: str, provider: str) -> bool:
    return not pool.is_reachable(node, provider)
