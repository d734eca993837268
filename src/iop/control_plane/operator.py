"""The operator socket: what Edges tell of themselves, for whoever may open a Unix socket on this machine (rules S1-S5).

There is no token: the file's permissions are the authorisation. Nothing secret passes it, and nothing can be changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from iop.control_plane.problems import MEDIA_TYPE, problem_of, refuse_http
from iop.net.guard import GuardLimits, guarded_site
from iop.units import rfc3339

if TYPE_CHECKING:
    from twisted.python.failure import Failure
    from twisted.web.iweb import IRequest
    from twisted.web.server import Request

    from iop.control_plane.edges import Edges
    from iop.interfaces import IClock
    from iop.net.http1 import HttpServerFactory

#: Few: people and their scripts ask here. A whole status may take many of an Edge's pages.
LIMITS: Final = GuardLimits(headers=8 * 1024, body=0, call_seconds=15.0, idle_seconds=15.0, connections=16)


class OperatorApi:
    """The klein application over one Control Plane's Edges."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._log = Logger()

    def site(self, clock: IClock) -> HttpServerFactory:
        """The socket's factory."""
        app = Klein()
        app.url_map.merge_slashes = False
        app.route("/v1/edges", methods=["GET"])(self._list)
        app.route("/v1/edges/<edge>", methods=["GET"])(self._status)
        app.handle_errors(Exception)(self._failed)
        return guarded_site(app.resource(), clock, LIMITS, lambda method, path: 0, refuse_http)

    def _list(self, request: Request) -> bytes:
        sessions = [
            {
                "edge": session.edge,
                "generation": session.sent,
                "acknowledged": session.acknowledged,
                "ready": session.ready,
                "connected_since": rfc3339(session.since_ms),
            }
            for session in self._edges.sessions()
        ]
        return _answer(request, {"edges": sessions})

    def _status(self, request: Request, edge: str) -> Deferred[bytes]:
        status = Deferred.fromCoroutine(self._edges.status(edge))
        return status.addCallback(lambda told: _answer(request, asdict(told)))

    def _failed(self, request: IRequest, failure: Failure) -> bytes:
        answer, error = cast("Request", request), failure.value
        status, document = problem_of(error)
        if status == 500:
            self._log.failure("control.operator.failed", failure)
        answer.setResponseCode(status)
        answer.responseHeaders.setRawHeaders(b"content-type", [MEDIA_TYPE])
        return document


def _answer(request: Request, document: dict[str, object]) -> bytes:
    request.responseHeaders.setRawHeaders(b"content-type", [b"application/json"])
    return json.dumps(document).encode()
