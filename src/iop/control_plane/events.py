"""What Edges tell without being asked, and that they come and go: the last of it, in memory only (rules S12, S13)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from iop.control_plane.commands import CommandState, moment, read_state
from iop.core.allowance import Allowance
from iop.core.lifecycle import NODE_ENDS
from iop.errors import ApiRefused, EventFlood, FrameTooLarge, UnexpectedMessage
from iop.units import is_name, new_id, rfc3339
from iop.wire import control_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from iop.control_plane.commands import Command
    from iop.control_plane.metrics import ControlPlaneMetrics
    from iop.interfaces import IClock

#: Events that are kept.
KEPT: Final = 1024
#: Events that one Edge may tell in a second, and at once: some of each Node that a catalogue may have.
PER_SECOND: Final = 200
BURST: Final = 4000
#: Bytes of one event at most, whose words are not even read.
EVENT_LIMIT: Final = 4096
#: Commands that are remembered so that their events are shown.
EXPECTED: Final = 4096
#: Askers that wait for an event at most.
WAITING: Final = 8

_OF_NODES: Final[Mapping[int, str]] = {
    control_pb2.LIFECYCLE_EVENT_NODE_READY: "node.ready",
    control_pb2.LIFECYCLE_EVENT_NODE_DISCONNECTED: "node.disconnected",
    control_pb2.LIFECYCLE_EVENT_NODE_DRAINING: "node.draining",
    control_pb2.LIFECYCLE_EVENT_NODE_RESUMED: "node.resumed",
}
_OF_EDGES: Final[Mapping[int, str]] = {
    control_pb2.LIFECYCLE_EVENT_EDGE_READY: "edge.ready",
    control_pb2.LIFECYCLE_EVENT_EDGE_DRAINING: "edge.draining",
    control_pb2.LIFECYCLE_EVENT_EDGE_RESUMED: "edge.resumed",
    control_pb2.LIFECYCLE_EVENT_EDGE_STOPPING: "edge.stopping",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What happened, whenever it was heard.

    :ivar event: ``command``, or of the Edge itself ``edge.*``, or of one of its Nodes ``node.*``.
    :ivar at: when, RFC 3339; by the Edge's clock if it told it.
    :ivar sequence: the Edge's own number of a lifecycle event, else 0.
    :ivar node: the Node, if it is about one.
    :ivar code: why, if that is known, and ``message`` what that means.
    :ivar command: how the command stands, if it is about one.
    """

    event: str
    at: str
    sequence: int = 0
    node: str = ""
    code: str = ""
    message: str = ""
    command: CommandState | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that an Edge told, or that was seen of it.

    :ivar number: rises by one with each event of this process.
    """

    number: int
    edge: str
    told: Told


@dataclass(frozen=True, slots=True)
class Heard:
    """What was heard after a number.

    :ivar stream: names this process; numbers of another one are of other events.
    :ivar newest: the number to ask with next.
    :ivar lost: whether others after the number asked for are kept no longer, or never had such numbers.
    """

    stream: str
    newest: int
    lost: bool
    events: tuple[Event, ...]


def read_lifecycle(told: control_pb2.EdgeNodeEvent) -> Told:
    """What an Edge tells of itself or a Node, in this side's words (S13).

    :raises UnexpectedMessage: if it has anything but names, numbers and known words.
    """
    of_node = _OF_NODES.get(told.event, "")
    event = of_node or _OF_EDGES.get(told.event, "")
    whose = is_name(told.node_id) if of_node else not told.node_id
    if not event or not whose:
        raise UnexpectedMessage("an Edge tells an event that is none")
    if (event == "node.disconnected") != bool(told.code) or (told.code and told.code not in NODE_ENDS):
        raise UnexpectedMessage("an Edge tells why something happened in no known words")
    return Told(event, moment(told.at_ms), told.sequence, told.node_id, told.code, NODE_ENDS.get(told.code, ""))


class Events:
    """The last events of every Edge."""

    def __init__(self, clock: IClock, metrics: ControlPlaneMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._stream = new_id()
        self._newest = 0
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._allowance = Allowance(PER_SECOND, BURST)
        #: Edge and command id -> operation, the oldest first.
        self._expected: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._waiting: list[Deferred[None]] = []

    # -- what happens -------------------------------------------------------------------------------------------------

    def connected(self, edge: str) -> None:
        """An Edge's hello was accepted."""
        self._seen(edge, "edge.connected")

    def disconnected(self, edge: str) -> None:
        """That connection ended."""
        self._seen(edge, "edge.disconnected")

    def expect(self, edge: str, command: Command) -> None:
        """Show what ``edge`` tells of ``command``: of others not even the id is shown, which could be anything."""
        self._expected[edge, command.command_id] = command.operation
        self._expected.move_to_end((edge, command.command_id))
        if len(self._expected) > EXPECTED:
            self._expected.popitem(last=False)

    def told(self, edge: str, message: Message, after: int) -> int:
        """Take a notification of ``edge``.

        :param after: the sequence of the last lifecycle event on this connection.
        :returns: the same with this one.
        :raises UnexpectedMessage: if it is not what it should be; :class:`~iop.errors.FrameTooLarge` and
            :class:`~iop.errors.EventFlood` if it is too much. Each ends the connection.
        """
        if self._allowance.take(edge, self._clock.boot()):
            raise EventFlood(f"an Edge tells more than {PER_SECOND} events a second")
        if message.ByteSize() > EVENT_LIMIT:
            raise FrameTooLarge(f"an event has more than {EVENT_LIMIT} bytes")
        self._metrics.edge_events.inc()
        match message:
            case control_pb2.EdgeNodeEvent():
                if message.sequence <= after:
                    raise UnexpectedMessage("an Edge tells its events in no order")
                self._add(edge, read_lifecycle(message))
                return message.sequence
            case control_pb2.EdgeCommandEvent():
                state = read_state(message)
                if self._expected.get((edge, state.command_id)) == state.operation:
                    self._add(edge, Told("command", state.at, command=state))
                return after
        raise UnexpectedMessage("an Edge may not send this")

    # -- who asks -----------------------------------------------------------------------------------------------------

    async def after(self, number: int, edge: str | None, wait_seconds: float) -> Heard:
        """The events after ``number``, as soon as there is one, or none after ``wait_seconds``.

        :param edge: only those of this one.
        :raises ApiRefused: if as many wait as may.
        """
        until = self._clock.boot() + wait_seconds
        while True:
            heard = self._after(number, edge)
            seconds = until - self._clock.boot()
            if heard.events or heard.lost or seconds <= 0:
                return heard
            # what came meanwhile is of other Edges: it is not looked at again, and may go
            number = heard.newest
            await self._next(seconds)

    def _after(self, number: int, edge: str | None) -> Heard:
        gone = self._newest - len(self._kept)
        newer = takewhile(lambda event: event.number > number, reversed(self._kept))
        events = [event for event in newer if edge is None or event.edge == edge]
        return Heard(self._stream, self._newest, not gone <= number <= self._newest, tuple(reversed(events)))

    def _next(self, within_seconds: float) -> Deferred[None]:
        """Fires with the next event, or after ``within_seconds``."""
        if len(self._waiting) >= WAITING:
            raise ApiRefused(429, "too_many_waiting", f"{WAITING} callers wait for events", hint="ask with wait=0")
        turn: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(turn)
        late = self._clock.call_later(within_seconds, self._wake)

        def settled(result: object) -> object:
            if late.active():
                late.cancel()
            return result

        return turn.addBoth(settled)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.callback(None)

    def _seen(self, edge: str, event: str) -> None:
        self._add(edge, Told(event, rfc3339(self._clock.wall_ms())))

    def _add(self, edge: str, told: Told) -> None:
        self._newest += 1
        self._kept.append(Event(self._newest, edge, told))
        self._wake()
