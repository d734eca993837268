"""The operator socket: what Edges tell, and commands to them, for whoever may open a Unix socket here (rules S1-S13).

There is no token: the file's permissions are the authorisation. Nothing secret passes it. What a command changes is the
Edge's own, and lasts as long as its process does.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, cast

from klein import Klein
from klein.resource import KleinResource
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from iop.control_plane.commands import Command
from iop.control_plane.problems import MEDIA_TYPE, problem_of, refuse_http
from iop.control_plane.shielded import shielded
from iop.control_plane.slices import in_slices
from iop.errors import ApiRefused, MalformedInput
from iop.net.guard import GuardLimits, guarded_site
from iop.units import is_name, new_id, rfc3339
from iop.wire.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BytesIO

    from twisted.python.failure import Failure
    from twisted.web.iweb import IRequest
    from twisted.web.server import Request

    from iop.control_plane.commands import CommandDesk
    from iop.control_plane.edges import Edges
    from iop.control_plane.events import Event, Events
    from iop.control_plane.status import EdgeStatus, Statuses
    from iop.interfaces import IClock
    from iop.net.http1 import HttpServerFactory

#: Bytes of a command.
COMMAND_LIMIT: Final = 16 * 1024
#: Few: people and their scripts ask here. A whole status may take many of an Edge's pages.
LIMITS: Final = GuardLimits(headers=8 * 1024, body=COMMAND_LIMIT, call_seconds=15.0, idle_seconds=15.0, connections=16)
#: Seconds that a call waits for an event at most.
WAIT_LIMIT: Final = 10

_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")


class OperatorApi:
    """The klein application over one Control Plane's Edges."""

    def __init__(self, edges: Edges, statuses: Statuses, desk: CommandDesk, events: Events) -> None:
        self._edges = edges
        self._statuses = statuses
        self._desk = desk
        self._events = events
        self._log = Logger()

    def site(self, clock: IClock) -> HttpServerFactory:
        """The socket's factory."""
        return guarded_site(self.resource(), clock, LIMITS, body_limit, refuse_http)

    def resource(self) -> KleinResource:
        """The calls, without the limits on what comes before them."""
        app = Klein()
        app.url_map.merge_slashes = False
        app.route("/v1/edges", methods=["GET"])(self._list)
        app.route("/v1/edges/<edge>", methods=["GET"])(self._status)
        app.route("/v1/edges/<edge>/commands", methods=["POST"])(self._command)
        app.route("/v1/events", methods=["GET"])(self._heard)
        app.handle_errors(Exception)(self._failed)
        return app.resource()

    def _list(self, request: Request) -> bytes:
        sessions = [
            {
                "edge": session.edge,
                "mode": "legacy" if session.legacy else "managed",
                "generation": session.sent,
                "acknowledged": session.acknowledged,
                "ready": session.ready,
                "connected_since": rfc3339(session.since_ms),
            }
            for session in self._edges.sessions()
        ]
        return _answer(request, {"edges": sessions})

    def _status(self, request: Request, edge: str) -> Deferred[bytes]:
        return Deferred.fromCoroutine(self._told(request, edge))

    async def _told(self, request: Request, edge: str) -> bytes:
        document = await status_document(await self._statuses.status(edge), self._edges.clock)
        _is_json(request)
        return document

    def _command(self, request: Request, edge: str) -> Deferred[bytes]:
        work = self._desk.send(edge, read_command(request))
        sent = shielded(work, lambda failure: self._log.failure("control.operator.failed", failure))
        return sent.addCallback(lambda state: _answer(request, {"edge": edge, "command": asdict(state)}))

    def _heard(self, request: Request) -> Deferred[bytes]:
        after, edge, wait = read_question(request)
        heard = Deferred.fromCoroutine(self._events.after(after, edge, wait))
        return heard.addCallback(
            lambda heard: _answer(
                request,
                {
                    "stream": heard.stream,
                    "newest": heard.newest,
                    "lost": heard.lost,
                    "events": [_event(event) for event in heard.events],
                },
            )
        )

    def _failed(self, request: IRequest, failure: Failure) -> bytes:
        answer, error = cast("Request", request), failure.value
        status, document = problem_of(error)
        if status == 500:
            self._log.failure("control.operator.failed", failure)
        answer.setResponseCode(status)
        answer.responseHeaders.setRawHeaders(b"content-type", [MEDIA_TYPE])
        return document


def body_limit(method: bytes, path: bytes) -> int:
    """Bytes a call's body may have."""
    return COMMAND_LIMIT if method == b"POST" and path.endswith(b"/commands") else 0


async def status_document(told: EdgeStatus, clock: IClock) -> bytes:
    """An Edge's status as JSON, Node by Node with turns for everybody else: one of the largest catalogue has 20 MiB."""
    nodes: list[str] = []

    def steps() -> Iterator[None]:
        for node in told.nodes:
            nodes.append(json.dumps(asdict(node)))
            yield

    await in_slices(clock, steps())
    frame = json.dumps(asdict(replace(told, nodes=())))
    return f"{frame.removesuffix(']}')}{', '.join(nodes)}]}}".encode()


def read_command(request: Request) -> Command:
    """The body of a call as a command, whose id is minted if it has none.

    :raises ApiRefused: if it is not exactly that.
    """
    if request.requestHeaders.getRawHeaders(b"content-type", []) != [b"application/json"]:
        raise ApiRefused(415, "json_only", "a command is sent as application/json")
    try:
        body, _ = parse_object(cast("BytesIO", request.content).read())
    except MalformedInput as error:
        raise ApiRefused(400, "bad_json", error.message) from None
    given: dict[str, Any] = {"command_id": new_id(), "selector": "", "metadata": {}} | body
    if set(given) != {"command_id", "operation", "selector", "metadata"}:
        raise ApiRefused(
            400, "bad_command", "a command has operation, and may have command_id, selector and metadata, nothing else"
        )
    metadata = given.pop("metadata")
    texts = [*given.values(), *(metadata.values() if isinstance(metadata, dict) else [None])]
    if not all(isinstance(text, str) for text in texts):
        raise ApiRefused(400, "bad_command", "command_id, operation, selector and the values of metadata are strings")
    return Command(**given, metadata=tuple(metadata.items()))


def read_question(request: Request) -> tuple[int, str | None, int]:
    """The arguments of a call for events: the number after which, of which Edge, how many seconds to wait.

    :raises ApiRefused: if they are not exactly these, each at most once.
    """
    given: dict[bytes, list[bytes]] = request.args or {}
    values = {name.decode("ascii", "replace"): value[0].decode("ascii", "replace") for name, value in given.items()}
    numbers = [values.pop("after", "0"), values.pop("wait", "0")]
    edge = values.pop("edge", None)
    once = all(len(value) == 1 for value in given.values()) and b";" not in request.uri
    if values or not once or not all(map(_NUMBER.match, numbers)) or not (edge is None or is_name(edge)):
        raise ApiRefused(400, "bad_arguments", "this call takes after=NUMBER, edge=NAME and wait=SECONDS, each once")
    after, wait = map(int, numbers)
    if wait > WAIT_LIMIT:
        raise ApiRefused(400, "bad_arguments", f"wait has at most {WAIT_LIMIT} seconds")
    return after, edge, wait


def _event(event: Event) -> dict[str, object]:
    return {"number": event.number, "edge": event.edge, **asdict(event.told)}


def _is_json(request: Request) -> None:
    request.responseHeaders.setRawHeaders(b"content-type", [b"application/json"])


def _answer(request: Request, document: dict[str, object]) -> bytes:
    _is_json(request)
    return json.dumps(document).encode()
