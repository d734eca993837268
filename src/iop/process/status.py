"""``/healthz``, ``/readyz``, ``/metrics``: whether a process lives, whether it can serve or why not, what it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.web.resource import Resource
from twisted.web.server import Request

from iop.net.guard import GuardLimits, guarded_site
from iop.process.metrics import MetricsPage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from iop.interfaces import IClock
    from iop.net.http1 import Headers, HttpServerFactory

#: Small on purpose: what asks here is a probe.
STATUS_CONNECTIONS: Final = 64
_LIMITS: Final = GuardLimits(
    headers=8 * 1024, body=0, call_seconds=5.0, idle_seconds=15.0, connections=STATUS_CONNECTIONS
)


class _Page(Resource):
    def __init__(self, state: Callable[[], tuple[int, dict[str, object]]]) -> None:
        Resource.__init__(self)
        self._state = state

    def render_GET(self, request: Request) -> bytes:
        code, body = self._state()
        request.setResponseCode(code)
        request.setHeader(b"content-type", b"application/json")
        request.setHeader(b"cache-control", b"no-store")
        return json.dumps(body).encode() + b"\n"


def status_site(not_ready: Callable[[], list[str]], registry: CollectorRegistry, clock: IClock) -> HttpServerFactory:
    """:func:`status_pages` for a listener, within limits."""
    return guarded_site(status_pages(not_ready, registry), clock, _LIMITS, lambda method, path: 0, _refuse)


def status_pages(not_ready: Callable[[], list[str]], registry: CollectorRegistry) -> Resource:
    """The pages of one process.

    :param not_ready: sentences saying why the process cannot serve; none when it can.
    :param registry: of what the process counts.
    """

    def readiness() -> tuple[int, dict[str, object]]:
        reasons = not_ready()
        return 503 if reasons else 200, {"ready": not reasons, "reasons": reasons}

    root = Resource()
    root.putChild(b"healthz", _Page(lambda: (200, {"alive": True})))
    root.putChild(b"readyz", _Page(readiness))
    root.putChild(b"metrics", MetricsPage(registry))
    return root


def _refuse(status: int, code: str, message: str) -> tuple[Headers, bytes]:
    return [(b"content-type", b"application/json")], json.dumps({"code": code, "message": message}).encode() + b"\n"
