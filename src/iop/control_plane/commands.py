"""Commands to Edges: sent once they are audited, and answered in this side's own words (rules S6-S10, S13)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iop.core.commands import ENDS, REFUSALS
from iop.errors import ApiRefused, MalformedInput, PeerDisconnected, RequestTimedOut, UnexpectedMessage
from iop.units import SELECTOR_LIMIT, rfc3339
from iop.wire import control_pb2

if TYPE_CHECKING:
    from iop.control_plane.edges import Edges
    from iop.control_plane.events import Events
    from iop.control_plane.metrics import ControlPlaneMetrics
    from iop.interfaces import IAudit, IPeer

#: How long an Edge may take to say whether it accepts a command.
ANSWER_SECONDS: Final = 5.0
#: Metadata of one command at most, and characters of a key and of a value.
METADATA_LIMIT: Final = 16
KEY_LIMIT: Final = 64
VALUE_LIMIT: Final = 256
#: The last moment that has four digits for its year.
LAST_MS: Final = 253_402_300_799_999
#: What to do about a command that nobody answered.
_AGAIN: Final = "it may run all the same: send it again with the same id"
#: What to do about a refusal of :data:`~iop.core.commands.REFUSALS`.
_HINTS: Final[Mapping[str, str]] = {
    "bad_command_id": "an id is 1 to 64 of A-Z a-z 0-9 . _ -",
    "command_conflict": "repeat it with the words that it was given with, or leave out the id",
    "unknown_operation": "see iop edge command --help; an Edge in legacy mode has none for leases and projections",
    "bad_selector": "for Nodes or providers write key=value[,key=value...], for all else nothing",
    "nothing_selected": "iop edge status EDGE lists its Nodes and providers; labels are in its configuration",
    "unknown_metadata": "draining takes --set deadline_seconds=1..3600, all else nothing",
    "bad_metadata": "deadline_seconds is 1 to 3600",
    "too_many_commands": "try again when some of them have ended",
}

_COMMAND_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_OPERATION: Final = re.compile(r"[a-z][a-z0-9_.]{0,63}\Z")

_PHASES: Final[Mapping[int, str]] = {
    control_pb2.COMMAND_PHASE_ACCEPTED: "accepted",
    control_pb2.COMMAND_PHASE_RUNNING: "running",
    control_pb2.COMMAND_PHASE_SUCCEEDED: "succeeded",
    control_pb2.COMMAND_PHASE_FAILED: "failed",
    control_pb2.COMMAND_PHASE_CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command as an operator gives it.

    :param selector: ``key=value[,key=value…]``, or empty; the Edge resolves it (S8).
    :param metadata: keys and values, each key once.
    """

    command_id: str
    operation: str
    selector: str
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CommandState:
    """How a command stands on its Edge.

    :ivar phase: ``accepted``, ``running``, ``succeeded``, ``failed`` or ``cancelled``.
    :ivar done: how many of ``total`` things are done.
    :ivar code: why it failed or was cancelled, and ``message`` what that means; else empty.
    :ivar at: when, by the Edge's clock, RFC 3339.
    """

    command_id: str
    operation: str
    phase: str
    done: int
    total: int
    code: str
    message: str
    at: str


def check_command(command: Command) -> Command:
    """``command``, if its shape is one that travels; what it means only its Edge knows (S7-S9).

    :raises MalformedInput: if it is not.
    """
    if not _COMMAND_ID.match(command.command_id):
        raise MalformedInput("a command id is 1-64 of A-Z a-z 0-9 . _ -")
    if not _OPERATION.match(command.operation):
        raise MalformedInput("an operation is 1-64 of a-z 0-9 . _", hint="such as edge.drain")
    if len(command.selector) > SELECTOR_LIMIT or not command.selector.isprintable():
        raise MalformedInput(f"a selector has at most {SELECTOR_LIMIT} printable characters")
    keys = [key for key, _ in command.metadata]
    if len(keys) > METADATA_LIMIT or len(set(keys)) < len(keys):
        raise MalformedInput(f"metadata has at most {METADATA_LIMIT} keys, each once")
    for key, value in command.metadata:
        if not 0 < len(key) <= KEY_LIMIT or len(value) > VALUE_LIMIT or not (key + value).isprintable():
            raise MalformedInput(f"metadata keys have 1-{KEY_LIMIT} printable characters, values at most {VALUE_LIMIT}")
    return command


def read_state(told: control_pb2.EdgeCommandEvent) -> CommandState:
    """What an Edge tells of a command, of which nothing but names, numbers and known words is kept (S13).

    :raises UnexpectedMessage: if it is anything else.
    """
    phase = _PHASES.get(told.phase)
    ended_early = phase in ("failed", "cancelled")
    if phase is None or ended_early != bool(told.code) or (ended_early and told.code not in ENDS):
        raise UnexpectedMessage("an Edge tells of a command in no known words")
    if not _COMMAND_ID.match(told.command_id) or not _OPERATION.match(told.operation) or told.done > told.total:
        raise UnexpectedMessage("an Edge tells of a command with ids or numbers that are none")
    return CommandState(
        told.command_id,
        told.operation,
        phase,
        told.done,
        told.total,
        told.code,
        ENDS.get(told.code, ""),
        moment(told.at_ms),
    )


def moment(at_ms: int) -> str:
    """A time that an Edge tells, as RFC 3339; :class:`~iop.errors.UnexpectedMessage` if it is none."""
    if not 0 <= at_ms <= LAST_MS:
        raise UnexpectedMessage("an Edge tells a time that is none")
    return rfc3339(at_ms)


async def ask_command(peer: IPeer, command: Command) -> CommandState:
    """Send one command and read how it stands.

    :raises ApiRefused: if the Edge refuses it.
    :raises UnexpectedMessage: if the answer is not what it should be; the caller ends the connection.
    :raises RequestTimedOut: if there is none in time; other errors of :meth:`iop.interfaces.IPeer.request` too.
    """
    question = control_pb2.EdgeCommandRequest(
        command_id=command.command_id,
        operation=command.operation,
        target_selector=command.selector,
        metadata=[control_pb2.CommandMetadata(key=key, value=value) for key, value in command.metadata],
    )
    answer = await peer.request(question, ANSWER_SECONDS)
    if not isinstance(answer, control_pb2.EdgeCommandResponse) or answer.accepted != answer.HasField("state"):
        raise UnexpectedMessage("an Edge answers a command with something else")
    if not answer.accepted:
        if answer.code not in REFUSALS:
            raise UnexpectedMessage("an Edge refuses a command in no known words")
        raise ApiRefused(409, answer.code, REFUSALS[answer.code], hint=_HINTS[answer.code])
    state = read_state(answer.state)
    if answer.code or (state.command_id, state.operation) != (command.command_id, command.operation):
        raise UnexpectedMessage("an Edge answers a command with another one")
    return state


class CommandDesk:
    """Takes operators' commands to their Edges."""

    def __init__(self, audit: IAudit, edges: Edges, events: Events, metrics: ControlPlaneMetrics) -> None:
        self._audit = audit
        self._edges = edges
        self._events = events
        self._metrics = metrics

    async def send(self, edge: str, command: Command) -> CommandState:
        """Send ``command`` to ``edge``, or ask again how it stands: the Edge does nothing twice for one id (S6).

        :raises NotFound: if the Edge is not connected.
        :raises ApiRefused: if the Edge refuses it.
        :raises StoreUnavailable: or :class:`~iop.errors.StoreBusy`, if it cannot be audited; it is not sent then.
        :raises RequestTimedOut: or :class:`~iop.errors.PeerDisconnected`, if it is not known whether it arrived.
        """
        check_command(command)
        self._edges.link(edge)
        details: dict[str, str | int] = {"operation": command.operation, "command_id": command.command_id}
        await self._audit.append("operator", "edge.command", edge, "sent", details)
        link = self._edges.link(edge)
        self._events.expect(edge, command)
        outcome = "unanswered"
        try:
            state = await link.ask(lambda peer: ask_command(peer, command))
            outcome = "accepted"
        except RequestTimedOut:
            raise RequestTimedOut("the Edge did not answer the command in time", hint=_AGAIN) from None
        except PeerDisconnected as error:
            raise PeerDisconnected(error.message, hint=_AGAIN) from None
        except ApiRefused:
            outcome = "refused"
            raise
        finally:
            self._metrics.commands.count(outcome)
        return state
