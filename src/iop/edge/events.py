"""What an Edge tells its Control Plane without being asked (rules S10, S12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iop.core.allowance import Allowance
from iop.core.lifecycle import end_code
from iop.wire import control_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from iop.errors import IopError
    from iop.interfaces import IClock, IPeer


#: Events of Nodes that are told in a second, and at once: half of what a Control Plane takes before it ends the
#: connection (S13), since those of some seconds may arrive together.
PER_SECOND: Final = 100
BURST: Final = 2000


class Notes:
    """The way of notifications: over the connection whose hello was accepted, or nowhere.

    Nothing of them is kept, repeated or waited for (C34).
    """

    def __init__(self) -> None:
        self._peer: IPeer | None = None

    def go_to(self, peer: IPeer) -> None:
        """The Control Plane accepted the hello on ``peer``."""
        self._peer = peer

    def no_longer_to(self, peer: IPeer) -> None:
        """``peer`` has ended; if another connection took its place, that stays."""
        if self._peer is peer:
            self._peer = None

    def tell(self, message: Message) -> None:
        """Tell it, if there is anybody."""
        if self._peer is not None:
            self._peer.notify(message)


class Events:
    """Numbers what has become true of a Node or of the Edge, and tells it.

    Each method is called after it has become true in what it is about. Of Nodes that come and go in crowds not all is
    told: the connection over which it goes is the one that leases come over.
    """

    def __init__(self, notes: Notes, clock: IClock) -> None:
        self._notes = notes
        self._clock = clock
        self._allowance = Allowance(PER_SECOND, BURST)
        #: The number of the newest event of this process, heard or not; 0 before the first.
        self.sequence = 0

    def node_ready(self, node: str) -> None:
        """Requests are dispatched to a Node from now on, unless it is drained."""
        self._happened(control_pb2.LIFECYCLE_EVENT_NODE_READY, node)

    def node_disconnected(self, node: str, reason: IopError) -> None:
        """The connection of a Node that was ready has ended."""
        self._happened(control_pb2.LIFECYCLE_EVENT_NODE_DISCONNECTED, node, end_code(reason))

    def node_draining(self, node: str) -> None:
        """A Node, connected or not, gets no new run."""
        self._happened(control_pb2.LIFECYCLE_EVENT_NODE_DRAINING, node)

    def node_resumed(self, node: str) -> None:
        """A Node that was drained gets runs again."""
        self._happened(control_pb2.LIFECYCLE_EVENT_NODE_RESUMED, node)

    def edge_ready(self) -> None:
        """The connection to the Control Plane is ready."""
        self._happened(control_pb2.LIFECYCLE_EVENT_EDGE_READY)

    def edge_draining(self) -> None:
        """New requests are refused."""
        self._happened(control_pb2.LIFECYCLE_EVENT_EDGE_DRAINING)

    def edge_resumed(self) -> None:
        """Requests are served again."""
        self._happened(control_pb2.LIFECYCLE_EVENT_EDGE_RESUMED)

    def edge_stopping(self) -> None:
        """The process is going away."""
        self._happened(control_pb2.LIFECYCLE_EVENT_EDGE_STOPPING)

    def _happened(self, event: control_pb2.LifecycleEvent, node: str = "", code: str = "") -> None:
        self.sequence += 1
        if node and self._allowance.take("", self._clock.boot()):
            return
        self._notes.tell(
            control_pb2.EdgeNodeEvent(
                sequence=self.sequence, event=event, node_id=node, at_ms=self._clock.wall_ms(), code=code
            )
        )
