"""The operator socket from its client's side: what Edges and Nodes are doing, and commands to Edges.

Whoever may open the socket may ask, so nothing proves who asks. What answers is whatever listens at the path that was
given: its answer is bounded in time and size, read strictly, and shown without what a terminal would obey.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, TypeVar

import click
from pydantic import BaseModel, ConfigDict, ValidationError
from twisted.internet.defer import Deferred, TimeoutError, succeed
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.web.client import URI, Agent, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory, IBodyProducer
from zope.interface import implementer

from iop.cli.answers import plain
from iop.cli.body import Body
from iop.cli.reactor import run_in_reactor
from iop.errors import ApiRefused, BadConfig, IopError, MalformedInput, NotFound
from iop.process.config import Name
from iop.units import SOCKET_PATH_LIMIT, fits_socket, is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twisted.internet.interfaces import IConsumer

    from iop.process.role import IReactor

#: Seconds one call may take, from connecting to the last byte of its answer, however it trickles.
CALL_SECONDS: Final = 15.0
#: Bytes of an answer at most: an Edge with as many Nodes and providers as it may have takes about a third.
ANSWER_LIMIT: Final = 64 * 1024 * 1024
#: What to check when somebody else listens there, or nobody.
_WHICH_SOCKET: Final = "does the Control Plane run, and does [operator] socket in its configuration name this path?"

socket_option = click.option(
    "--socket",
    required=True,
    metavar="PATH",
    envvar="IOP_OPERATOR_SOCKET",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The Control Plane's operator socket.",
)


class OperatorUnreachable(IopError):
    """No answer came from the operator socket."""

    code: ClassVar[str] = "operator_unreachable"
    retryable: ClassVar[bool] = True


# -- what is told -----------------------------------------------------------------------------------------------------


class Told(BaseModel):
    """Part of an answer: what it must have is checked, and what a newer Control Plane adds is kept."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)


class EdgeSession(Told):
    """A connected Edge.

    :ivar mode: ``managed`` or ``legacy``.
    :ivar generation: the newest that was sent to it; ``acknowledged`` is the newest that it confirmed.
    :ivar connected_since: RFC 3339.
    """

    edge: Name
    mode: Literal["managed", "legacy"]
    generation: int
    acknowledged: int
    ready: bool
    connected_since: str


class EdgeSessions(Told):
    """The connected Edges, by name."""

    edges: list[EdgeSession]


class ProviderConfig(Told):
    """A provider as its Node is told of it; ``models`` is how many it has."""

    provider: Name
    category: str
    profile: str
    target: str
    models: int
    capacity: int
    long_context_capacity: int


class NodeConfig(Told):
    """What of an Edge's configuration is sent down to a Node."""

    providers: list[ProviderConfig]


class ProviderStatus(Told):
    """A provider of a Node as it is now; one that is given nothing has no capacity."""

    provider: Name
    category: str
    status: str
    health: str
    capacity: int
    in_flight: int
    queued: int
    long_context_capacity: int
    long_in_flight: int
    long_queued: int


class NodeStatus(Told):
    """A Node of an Edge's configuration, and whether it is connected."""

    node: Name
    connected: bool
    config: NodeConfig
    providers: list[ProviderStatus]


class EdgeStatus(Told):
    """What an Edge tells of itself.

    :ivar generation: the one in force there, 0 if there is none.
    :ivar draining: whether it refuses new requests, because an operator drained it.
    :ivar event_sequence: the Edge's own number of its newest lifecycle event.
    """

    edge: Name
    generation: int
    draining: bool
    event_sequence: int
    nodes: list[NodeStatus]


class CommandState(Told):
    """How a command stands on its Edge: of ``total`` things ``done`` are, and ``code`` says why it ended early."""

    command_id: str
    operation: str
    phase: Literal["accepted", "running", "succeeded", "failed", "cancelled"]
    done: int
    total: int
    code: str
    message: str
    at: str


class Commanded(Told):
    """What an Edge answered to a command."""

    edge: Name
    command: CommandState


class Event(Told):
    """What an Edge told, or the Control Plane saw of it.

    :ivar number: the Control Plane's; ``sequence`` is the Edge's own, 0 if it has none.
    :ivar command: how a command stands, if it is about one.
    """

    number: int
    edge: Name
    event: str
    at: str
    sequence: int
    node: str
    code: str
    message: str
    command: CommandState | None


class Heard(Told):
    """The events after a number; see :class:`iop.control_plane.events.Heard`."""

    stream: str
    newest: int
    lost: bool
    events: list[Event]


class _Problem(Told):
    """An error document (RFC 9457)."""

    code: str
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: an operation, what of the Edge it is for, and its own values."""

    command_id: str
    operation: str
    selector: str
    metadata: Mapping[str, str]


T = TypeVar("T")
Document = TypeVar("Document", bound=Told)


# -- asking -----------------------------------------------------------------------------------------------------------


def ask(socket: Path, work: Callable[[Operator], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` with a client of ``socket``, in the reactor, to its end. Once per process."""
    return run_in_reactor(lambda reactor: work(Operator(reactor, socket)))


class Operator:
    """A client of one operator socket.

    Every call raises :class:`OperatorUnreachable` if no answer comes in time, :class:`~iop.errors.NotFound` and
    :class:`~iop.errors.ApiRefused` for a refusal, and the latter, as ``bad_answer``, for what is no answer of this API.

    :param reactor: the reactor to connect on.
    :param path: where the socket is.
    :raises BadConfig: for a path that no socket can have.
    """

    def __init__(self, reactor: IReactor, path: Path) -> None:
        if not fits_socket(path):
            raise BadConfig(
                f"the path of a Unix socket has at most {SOCKET_PATH_LIMIT} bytes",
                hint="name it relative to another folder, or move it: [operator] socket of the Control Plane",
            )
        self._path = path
        #: What it runs on.
        self.reactor: Any = reactor
        endpoint = UNIXClientEndpoint(self.reactor, str(path), timeout=CALL_SECONDS)
        self._agent = Agent.usingEndpointFactory(self.reactor, _Always(endpoint))

    async def edges(self) -> EdgeSessions:
        """The Edges that are connected now."""
        return await self._ask("/v1/edges", EdgeSessions)

    async def edge(self, name: str) -> EdgeStatus:
        """What the connected Edge ``name`` tells of itself."""
        try:
            return await self._ask(f"/v1/edges/{_name(name)}", EdgeStatus)
        except ApiRefused as refused:
            # such as one that does not answer: of several that are asked, people need to know which
            raise ApiRefused(
                refused.status, refused.reason, f"Edge {name}: {refused.message}", hint=refused.hint
            ) from None

    async def every_edge(self) -> tuple[list[EdgeStatus], dict[str, ApiRefused]]:
        """What each connected Edge tells of itself, one after another, and why some, by name, told nothing.

        One that leaves meanwhile is left out.
        """
        told: list[EdgeStatus] = []
        failed: dict[str, ApiRefused] = {}
        for session in (await self.edges()).edges:
            try:
                told.append(await self.edge(session.edge))
            except NotFound:
                continue
            except ApiRefused as refused:
                failed[session.edge] = refused
        return told, failed

    async def command(self, edge: str, command: Command) -> Commanded:
        """Give ``edge`` a command, or ask how it stands with the same one again."""
        body = {
            "command_id": command.command_id,
            "operation": command.operation,
            "selector": command.selector,
            "metadata": dict(command.metadata),
        }
        return await self._ask(f"/v1/edges/{_name(edge)}/commands", Commanded, json.dumps(body).encode())

    async def events(self, edge: str | None, after: int, wait_seconds: int) -> Heard:
        """The events after a number, of one Edge or all; waits so long for the next if there is none."""
        of_edge = "" if edge is None else f"&edge={_name(edge)}"
        return await self._ask(f"/v1/events?after={after}&wait={wait_seconds}{of_edge}", Heard)

    async def _ask(self, path: str, document: type[Document], body: bytes | None = None) -> Document:
        asking = Deferred.fromCoroutine(self._answer(path, body))
        try:
            status, content = await asking.addTimeout(CALL_SECONDS, self.reactor, _late)
            if status == 200:
                return document.model_validate_json(content)
            problem = _Problem.model_validate_json(content)
        except ConnectError as error:
            raise self._unreachable(error) from None
        except TimeoutError:
            raise OperatorUnreachable(
                f"{self._path} did not answer within {CALL_SECONDS:g} s", hint=f"try again; {_WHICH_SOCKET}"
            ) from None
        except (ConnectionClosed, ResponseFailed, ValidationError, MalformedInput) as error:
            raise self._bad_answer(error) from None
        code, detail, hint = (plain(text) for text in (problem.code, problem.detail, problem.hint))
        if code == NotFound.code:
            raise NotFound(detail, hint=hint)
        raise ApiRefused(status, code, detail, hint=hint)

    async def _answer(self, path: str, sent: bytes | None) -> tuple[int, bytes]:
        url = b"http://localhost" + path.encode()
        if sent is None:
            response = await self._agent.request(b"GET", url)
        else:
            headers = Headers({"Content-Type": ["application/json"]})
            response = await self._agent.request(b"POST", url, headers, _Sent(sent))
        body = Body(ANSWER_LIMIT)
        response.deliverBody(body)
        return response.code, await body.whole

    def _unreachable(self, error: ConnectError) -> OperatorUnreachable:
        if error.osError in (errno.EACCES, errno.EPERM):
            return OperatorUnreachable(
                f"this user may not open {self._path}",
                hint="the socket, and every folder above it, must be open to this user: "
                "it is for the Control Plane's user and the socket's group",
            )
        if error.osError == errno.ENOENT:
            return OperatorUnreachable(f"there is no socket at {self._path}", hint=_WHICH_SOCKET)
        return OperatorUnreachable(f"nothing answers at {self._path}", hint=_WHICH_SOCKET)

    def _bad_answer(self, error: Exception) -> ApiRefused:
        what = error.message if isinstance(error, MalformedInput) else "it is not what a Control Plane answers"
        return ApiRefused(502, "bad_answer", f"the answer at {self._path} is refused: {what}", hint=_WHICH_SOCKET)


def _name(edge: str) -> str:
    """``edge``, which becomes part of a path."""
    if not is_name(edge):
        raise NotFound("no Edge can have such a name", hint="names are 1-63 of a-z 0-9 . _ -; see: iop edge list")
    return edge


def _late(_: object, seconds: float) -> NoReturn:
    """Whatever the cancelled step made of its cancellation."""
    raise TimeoutError(seconds, "Deferred")


@implementer(IAgentEndpointFactory)
class _Always:
    """One endpoint, whatever the URL says."""

    def __init__(self, endpoint: UNIXClientEndpoint) -> None:
        self._endpoint = endpoint

    def endpointForURI(self, uri: URI) -> UNIXClientEndpoint:
        """See :class:`twisted.web.iweb.IAgentEndpointFactory`."""
        return self._endpoint


@implementer(IBodyProducer)
class _Sent:
    """A body that is there already, and short enough to be written at once."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.length = len(content)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Write all of it."""
        consumer.write(self._content)
        return succeed(None)

    def pauseProducing(self) -> None:
        """There is nothing left to hold back."""

    def resumeProducing(self) -> None:
        """There is nothing left to go on with."""

    def stopProducing(self) -> None:
        """There is nothing left to stop."""
