"""What a process counts, as Prometheus reads it: a registry of its own, and label values that are known beforehand.

A label's values are closed sets of this project's or names from the role's own configuration, never what a caller or a
peer says; so every series is there from the start, none is added later, and no secret can become one (P25).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics, generate_latest
from twisted.web.resource import Resource

if TYPE_CHECKING:
    from twisted.web.server import Request

#: Counts whatever is in no closed set.
OTHER: Final = "other"
#: Buckets for how long the head of a provider's answer takes, the same wherever it is measured.
HEAD_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"

# the library's switch is one for the process; a second gauge beside each counter would only double the page
disable_created_metrics()


def new_registry() -> CollectorRegistry:
    """The registry of one process, with what the kernel knows of it: CPU, memory, descriptors, start."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


class Tally:
    """A counter with one label of known values, each of them a series from the start.

    :param values: the values; any other is counted as :data:`OTHER`.
    """

    def __init__(
        self, registry: CollectorRegistry, name: str, documentation: str, label: str, values: Iterable[str]
    ) -> None:
        counter = Counter(name, documentation, [label], registry=registry)
        self._series = {value: counter.labels(value) for value in sorted({*values, OTHER})}

    def count(self, value: str) -> None:
        """Count one."""
        self._series.get(value, self._series[OTHER]).inc()


class MetricsPage(Resource):
    """``/metrics``, in the text format."""

    def __init__(self, registry: CollectorRegistry) -> None:
        Resource.__init__(self)
        self._registry = registry

    def render_GET(self, request: Request) -> bytes:
        """The page."""
        request.setHeader(b"content-type", _TEXT)
        request.setHeader(b"cache-control", b"no-store")
        return generate_latest(self._registry)
