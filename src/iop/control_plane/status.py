"""What an Edge tells of itself, asked page by page (rules S1-S4). Nothing of it is kept: the Edge owns it (C2, C47)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iop.errors import UnexpectedMessage
from iop.wire import control_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iop.interfaces import IPeer

#: How long an Edge may take for one page.
PAGE_SECONDS: Final = 5.0
#: Pages of one answer at most: more than a catalogue of the largest size has.
PAGE_LIMIT: Final = 128


@dataclass(frozen=True, slots=True)
class EdgeStatus:
    """An Edge's own snapshot, as it was while its pages were read."""

    edge: str
    #: Of the projection in force, 0 if there is none.
    generation: int
    nodes: Sequence[control_pb2.EdgeNodeSnapshot]


async def ask_status(peer: IPeer, edge: str) -> EdgeStatus:
    """Read an Edge's whole snapshot.

    :param peer: its connection, whose hello was accepted.
    :raises UnexpectedMessage: if its pages are not what they should be; the caller ends the connection.
    :raises RequestTimedOut: if it does not answer in time; other errors of :meth:`iop.interfaces.IPeer.request` too.
    """
    nodes: list[control_pb2.EdgeNodeSnapshot] = []
    for _ in range(PAGE_LIMIT):
        after = nodes[-1].node_id if nodes else ""
        page = await peer.request(control_pb2.EdgeStatusRequest(after=after), PAGE_SECONDS)
        if not isinstance(page, control_pb2.EdgeStatusResponse) or page.edge_id != edge:
            raise UnexpectedMessage("an Edge answers for its status with something else")
        for node in page.nodes:
            if node.node_id <= after:
                raise UnexpectedMessage("an Edge tells its Nodes in no order")
            after = node.node_id
        nodes.extend(page.nodes)
        if not page.more:
            return EdgeStatus(edge, page.generation, nodes)
        if not page.nodes:
            break
    raise UnexpectedMessage("an Edge's status has no end")
