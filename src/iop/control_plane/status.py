"""What an Edge tells of itself, asked page by page (rules S1-S4). Nothing of it is kept: the Edge owns it (C2, C47)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iop.errors import RequestTimedOut, UnexpectedMessage
from iop.units import is_name
from iop.wire import control_pb2, runtime_pb2

if TYPE_CHECKING:
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
    """

    edge: str
    generation: int
    nodes: tuple[NodeStatus, ...]


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
            return EdgeStatus(edge, page.generation, tuple(nodes))
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
