"""``/healthz`` and ``/readyz``: whether a process lives, and whether it can serve or why not."""

from __future__ import annotations

import json
from collections.abc import Callable

from twisted.web.resource import Resource
from twisted.web.server import Request


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


def status_pages(not_ready: Callable[[], list[str]]) -> Resource:
    """The pages of one process.

    :param not_ready: sentences saying why the process cannot serve; none when it can.
    """

    def readiness() -> tuple[int, dict[str, object]]:
        reasons = not_ready()
        return 503 if reasons else 200, {"ready": not reasons, "reasons": reasons}

    root = Resource()
    root.putChild(b"healthz", _Page(lambda: (200, {"alive": True})))
    root.putChild(b"readyz", _Page(readiness))
    return root
