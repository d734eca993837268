"""What an Edge tells of itself, asked page by page (rules S1-S4). Nothing of it is kept: the Edge owns it (C2, C47)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from iop.core.allowance import Allowance
from iop.errors import ApiRefused, RequestTimedOut, UnexpectedMessage
from iop.units import is_name
from iop.wire import control_pb2, runtime_pb2

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from iop.control_plane.edges import Edges
    from iop.interfaces import IClock, IPeer

#: How long an Edge may take for one page, and for all of them.
PAGE_SECONDS: Final = 5.0
WHOLE_SECONDS: Final = 10.0
#: Pages of one answer at most: more than a catalogue of the largest size has.
PAGE_LIMIT: Final = 128
#: Nodes of one answer at most, as in an Edge's configuration: an empty one is few bytes on the wire and many here.
NODE_LIMIT: Final = 1000
#: Providers of one Node at most, as in an Edge's configuration.
PROVIDER_LIMIT: Final = 64
#: How often one Edge is asked: so often at once, then so often a second.
ASKED_BURST: Final = 8
ASKED_PER_SECOND: Final = 4

_CATEGORIES: Final[Mapping[int, str]] = {
    runtime_pb2.PROVIDER_CATEGORY_CLI: "cli",
    runtime_pb2.PROVIDER_CATEGORY_API: "api",
    runtime_pb2.PROVIDER_CATEGORY_LOCAL_INFERENCE: "local_inference",
}
_STATUSES: Final[Mapping[int, str]] = {
    runtime_pb2.PROVIDER_STATUS_AVAILABLE: "available",
    runtime_pb2.PROVIDER_STATUS_UNAVAILABLE: "unavailable",
}
_HEALTHS: Final[Mapping[int, str]] = {
    runtime_pb2.PROVIDER_HEALTH_HEALTHY: "healthy",
    runtime_pb2.PROVIDER_HEALTH_OFFLINE: "offline",
    runtime_pb2.PROVIDER_HEALTH_UNREACHABLE: "unreachable",
}


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """A provider as its Node is told of it, summed up (C29)."""

    provider: str
    category: str
    profile: str
    target: str
    models: int
    capacity: int
    long_context_capacity: int


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    """A provider as it is now (C30-C33)."""

    provider: str
    category: str
    status: str
    health: str
    capacity: int
    in_flight: int
    queued: int
    long_context_capacity: int
    long_in_flight: int
    long_queued: int


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What of the Edge's catalogue is sent down to a Node."""

    providers: tuple[ProviderConfig, ...]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A configured Node, and whether requests are dispatched to it now (C28)."""

    node: str
    connected: bool
    config: NodeConfig
    providers: tuple[ProviderStatus, ...]


@dataclass(frozen=True, slots=True)
class EdgeStatus:
    """An Edge's own snapshot, as it was while its pages were read.

    :ivar generation: of the projection in force, 0 if there is none.
    :ivar draining: whether it refuses new requests since ``edge.drain`` (S11).
    :ivar event_sequence: of its newest lifecycle event (S12).
    """

    edge: str
    generation: int
    draining: bool
    event_sequence: int
    nodes: tuple[NodeStatus, ...]


class Statuses:
    """Asks Edges for their status: whoever wants that of one which is being asked gets the same answer (S1)."""

    def __init__(self, edges: Edges, clock: IClock) -> None:
        self._edges = edges
        self._clock = clock
        self._allowance = Allowance(ASKED_PER_SECOND, ASKED_BURST)
        #: Edge -> who waits for its answer.
        self._waiting: dict[str, list[Deferred[EdgeStatus]]] = {}

    def status(self, edge: str) -> Deferred[EdgeStatus]:
        """What a connected Edge tells of itself; cancelling gives up this wait alone.

        Fails with :class:`~iop.errors.NotFound` if there is no connection of it whose word on the projection is in,
        and with :class:`~iop.errors.ApiRefused` if it is asked too often.
        """
        waiting = self._waiting.get(edge)
        if waiting is None:
            waiting = self._waiting[edge] = []
            asked = Deferred.fromCoroutine(self._ask(edge))
            turn = self._wait(waiting)
            asked.addCallbacks(self._answered, self._failed, (edge,), {}, (edge,))
            return turn
        return self._wait(waiting)

    async def _ask(self, edge: str) -> EdgeStatus:
        link = self._edges.link(edge)
        if self._allowance.take(edge, self._clock.boot()):
            raise ApiRefused(
                429, "asked_too_often", "this Edge is asked for its status too often", hint="wait a second"
            )
        try:
            return await link.ask(lambda peer: ask_status(peer, edge, self._clock))
        except RequestTimedOut:
            raise RequestTimedOut(
                "the Edge did not tell its status in time", hint="try again; if it stays so, see the Edge's own log"
            ) from None

    def _wait(self, waiting: list[Deferred[EdgeStatus]]) -> Deferred[EdgeStatus]:
        turn: Deferred[EdgeStatus] = Deferred(waiting.remove)
        waiting.append(turn)
        return turn

    def _answered(self, status: EdgeStatus, edge: str) -> None:
        for turn in self._waiting.pop(edge):
            turn.callback(status)

    def _failed(self, failure: Failure, edge: str) -> None:
        for turn in self._waiting.pop(edge):
            turn.errback(failure)


async def ask_status(peer: IPeer, edge: str, clock: IClock) -> EdgeStatus:
    """Read an Edge's whole snapshot.

    :param peer: its connection, whose hello was accepted.
    :raises UnexpectedMessage: if its pages are not what they should be; the caller ends the connection.
    :raises RequestTimedOut: if it does not answer in time; other errors of :meth:`iop.interfaces.IPeer.request` too.
    """
    nodes: list[NodeStatus] = []
    until = clock.boot() + WHOLE_SECONDS
    for _ in range(PAGE_LIMIT):
        after = nodes[-1].node if nodes else ""
        seconds = min(PAGE_SECONDS, until - clock.boot())
        if seconds <= 0:
            raise RequestTimedOut("the Edge took too long for its status")
        page = await peer.request(control_pb2.EdgeStatusRequest(after=after), seconds)
        if not isinstance(page, control_pb2.EdgeStatusResponse) or page.edge_id != edge:
            raise UnexpectedMessage("an Edge answers for its status with something else")
        if len(nodes) + len(page.nodes) > NODE_LIMIT:
            raise UnexpectedMessage("an Edge tells more Nodes than a catalogue may have")
        for told in page.nodes:
            node = _node(told)
            if node.node <= after:
                raise UnexpectedMessage("an Edge tells its Nodes in no order")
            after = node.node
            nodes.append(node)
        if not page.more:
            return EdgeStatus(edge, page.generation, page.draining, page.event_sequence, tuple(nodes))
        if not page.nodes:
            break
    raise UnexpectedMessage("an Edge's status has no end")


def _node(told: control_pb2.EdgeNodeSnapshot) -> NodeStatus:
    if max(len(told.config.providers), len(told.provider_snapshots)) > PROVIDER_LIMIT:
        raise UnexpectedMessage("a Node has more providers than a catalogue may give it")
    config = tuple(
        ProviderConfig(
            _name(provider.provider_id),
            _word(_CATEGORIES, provider.category),
            _name(provider.profile),
            _name(provider.target),
            provider.models,
            provider.capacity,
            provider.long_context_capacity,
        )
        for provider in told.config.providers
    )
    providers = tuple(
        ProviderStatus(
            _name(provider.provider_id),
            _word(_CATEGORIES, provider.category),
            _word(_STATUSES, provider.status),
            _word(_HEALTHS, provider.health),
            provider.capacity,
            provider.in_flight,
            provider.queued,
            provider.long_context_capacity,
            provider.long_in_flight,
            provider.long_queued,
        )
        for provider in told.provider_snapshots
    )
    return NodeStatus(_name(told.node_id), told.connected, NodeConfig(config), providers)


def _name(text: str) -> str:
    """A name as configurations have them: so no address or sentence passes for one (C46)."""
    if not is_name(text):
        raise UnexpectedMessage("an Edge's status has a name that is none")
    return text


def _word(words: Mapping[int, str], value: int) -> str:
    word = words.get(value)
    if word is None:
        raise UnexpectedMessage("an Edge's status has a value that is none")
    return word
