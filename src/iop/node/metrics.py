"""What a Node counts; every name and every label value of its metrics stands here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge, Histogram

from iop.core.runs import FAILURE_CODES
from iop.process.metrics import HEAD_SECONDS, Tally

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from iop.node.link import EdgeLink

#: The outcome of a run whose answer was passed on whole.
WHOLE: Final = "whole"
#: The outcome of a run whose Edge went away.
EDGE_LOST: Final = "edge_lost"


class NodeMetrics:
    """The counters, which whoever has something to count is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.runs = Tally(
            registry,
            "iop_node_runs",
            "Runs that are over, refused ones included, by outcome",
            "outcome",
            (*FAILURE_CODES, WHOLE, EDGE_LOST),
        )
        self.answer_bytes = Counter(
            "iop_node_answer_bytes", "Bytes of providers' answers to the Edge", registry=registry
        )
        self.head_seconds = Histogram(
            "iop_node_upstream_head_seconds",
            "From a call of a provider to the head of its answer",
            buckets=HEAD_SECONDS,
            registry=registry,
        )
        self.key_replacements = Counter(
            "iop_node_key_replacements", "Keys that took the place of an earlier one at the Edge", registry=registry
        )

    def watch(self, link: EdgeLink) -> None:
        """Have each page read from ``link`` what is now."""
        connected = Gauge("iop_node_edge_connected", "Whether the Edge may open runs", registry=self._registry)
        connected.set_function(lambda: link.ready)
        runs = Gauge("iop_node_runs_open", "Runs that are not over", registry=self._registry)
        runs.set_function(lambda: link.open_runs)
