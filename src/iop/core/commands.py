"""Commands to an Edge: which there are, how one goes on, which are remembered (rules S6-S10)."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from iop.core.selectors import Selector, parse
from iop.errors import CommandRefused, MalformedInput, UnexpectedStep

#: Commands that are over and still known by their ids.
REMEMBERED: Final = 256
#: Commands that run at a time.
RUNNING_LIMIT: Final = 16
#: What ``deadline_seconds`` may be, and what it is if nothing is said.
DEADLINE_LIMIT: Final = 3600
DEADLINE_SECONDS: Final = 300

_COMMAND_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SECONDS: Final = re.compile(r"[1-9][0-9]{0,3}\Z")

#: Why an Edge refuses a command: fixed words, so that nothing else can be in them (C46).
REFUSALS: Final[Mapping[str, str]] = {
    "bad_command_id": "the Edge takes no such command id",
    "command_conflict": "the Edge has had this command id with another operation, selector or metadata",
    "unknown_operation": "the Edge has no such operation",
    "bad_selector": "the Edge cannot read this selector, or this operation takes none or needs one",
    "nothing_selected": "nothing of this Edge matches the selector",
    "unknown_metadata": "this operation does not take one of these metadata keys",
    "bad_metadata": "a metadata value is not what its key takes",
    "too_many_commands": "as many commands run on this Edge as may",
}
#: Why a command failed or was cancelled, in the same way.
ENDS: Final[Mapping[str, str]] = {
    "deadline": "its deadline passed; what it drained stays drained",
    "resumed": "it was resumed before it was drained",
    "stopping": "the Edge stops",
    "bad_config": "the Edge's configuration files do not hold; what it had before stays in force",
    "file_refused": "a file of the Edge's configuration cannot be read safely; what it had before stays in force",
    "not_connected": "the Edge was not connected to its Control Plane",
    "projection_refused": "what the Edge was sent again is not what it acknowledged; what it had before stays in force",
    "projection_superseded": "newer projections came all the time; the newest of them is in force",
    "internal": "the Edge failed; its log says where",
}


class Phase(Enum):
    """How far a command is; its events rise through these."""

    ACCEPTED = auto()
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    CANCELLED = auto()


class Step(Enum):
    """What can happen to a command."""

    BEGIN = auto()
    ADVANCE = auto()
    SUCCEED = auto()
    FAIL = auto()
    CANCEL = auto()


#: Where a step leads; one that is not here is refused.
STEPS: Final[Mapping[tuple[Phase, Step], Phase]] = {
    (Phase.ACCEPTED, Step.BEGIN): Phase.RUNNING,
    (Phase.ACCEPTED, Step.FAIL): Phase.FAILED,
    (Phase.ACCEPTED, Step.CANCEL): Phase.CANCELLED,
    (Phase.RUNNING, Step.ADVANCE): Phase.RUNNING,
    (Phase.RUNNING, Step.SUCCEED): Phase.SUCCEEDED,
    (Phase.RUNNING, Step.FAIL): Phase.FAILED,
    (Phase.RUNNING, Step.CANCEL): Phase.CANCELLED,
}
#: After these nothing comes.
FINAL: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})


class Chooses(Enum):
    """What the selector of an operation chooses among."""

    NOTHING = auto()
    NODES = auto()
    PROVIDERS = auto()


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operation takes.

    :ivar chooses: what its selector is for; :attr:`Chooses.NOTHING` says that it takes none.
    :ivar has_deadline: whether it takes ``deadline_seconds``; there is no other metadata.
    :ivar credential_plane: whether it is about what an Edge in legacy mode does not have (C24).
    """

    chooses: Chooses = Chooses.NOTHING
    has_deadline: bool = False
    credential_plane: bool = False


#: The closed table (S7).
OPERATIONS: Final[Mapping[str, Operation]] = {
    "edge.drain": Operation(has_deadline=True),
    "edge.resume": Operation(),
    "node.drain": Operation(Chooses.NODES, has_deadline=True),
    "node.resume": Operation(Chooses.NODES),
    "node.disconnect": Operation(Chooses.NODES),
    "provider.disable": Operation(Chooses.PROVIDERS),
    "provider.enable": Operation(Chooses.PROVIDERS),
    "leases.flush": Operation(credential_plane=True),
    "projection.resync": Operation(credential_plane=True),
    "config.reload": Operation(),
}


@dataclass(frozen=True, slots=True)
class Order:
    """A command as it was given, before anything of it was looked at.

    :ivar metadata: keys and values, sorted: in which sequence they came makes no other order of it.
    """

    command_id: str
    operation: str
    selector: str
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an order asks for; the selector of an operation that takes none is empty."""

    operation: str
    selector: Selector
    deadline_seconds: int


def read(order: Order, *, managed: bool) -> Wanted:
    """What ``order`` asks for (S7-S9).

    :param managed: whether the Edge has the credential plane.
    :raises CommandRefused: if no Edge, or not this one, does that.
    """
    operation = OPERATIONS.get(order.operation)
    if operation is None or (operation.credential_plane and not managed):
        raise refused("unknown_operation")
    return Wanted(
        order.operation,
        _selector(order.selector, operation),
        _deadline(order.metadata, operation),
    )


def _selector(text: str, operation: Operation) -> Selector:
    if bool(text) == (operation.chooses is Chooses.NOTHING):
        raise refused("bad_selector")
    try:
        return parse(text)
    except MalformedInput:
        raise refused("bad_selector") from None


def _deadline(metadata: tuple[tuple[str, str], ...], operation: Operation) -> int:
    known = {"deadline_seconds"} if operation.has_deadline else set()
    if any(key not in known for key, _ in metadata):
        raise refused("unknown_metadata")
    match metadata:
        case ():
            return DEADLINE_SECONDS
        case ((_, text),) if _SECONDS.match(text) and int(text) <= DEADLINE_LIMIT:
            return int(text)
    raise refused("bad_metadata")


def refused(reason: str) -> CommandRefused:
    """The error for a reason of :data:`REFUSALS`, with its words."""
    return CommandRefused(reason, REFUSALS[reason])


@dataclass(frozen=True, slots=True)
class State:
    """How a command stands.

    :ivar done: how many of ``total`` things are done.
    :ivar code: why it failed or was cancelled, of :data:`ENDS`; else empty.
    :ivar at_ms: since when, Unix milliseconds.
    """

    phase: Phase
    done: int
    total: int
    code: str
    at_ms: int


class Command:
    """One command from the moment it is accepted.

    :param now_ms: the wall clock, Unix milliseconds.
    :param told: called with it after each step.
    """

    def __init__(self, order: Order, now_ms: Callable[[], int], told: Callable[[Command], object]) -> None:
        self.order = order
        self._now_ms = now_ms
        self._told = told
        self.state = State(Phase.ACCEPTED, 0, 0, "", now_ms())

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more."""
        return self.state.phase in FINAL

    def begin(self, total: int) -> None:
        """It runs, and has ``total`` things to do or to wait for.

        :raises UnexpectedStep: as every step, if it is not the turn for it.
        """
        self._go(Step.BEGIN, 0, total)

    def advance(self, done: int) -> None:
        """So many are done; they never become fewer, nor more than there are."""
        state = self.state
        self._go(Step.ADVANCE, min(max(done, state.done), state.total), state.total)

    def succeed(self) -> None:
        """All are done."""
        self._go(Step.SUCCEED, self.state.total, self.state.total)

    def fail(self, code: str) -> None:
        """It did not work, for a reason of :data:`ENDS`."""
        self._go(Step.FAIL, self.state.done, self.state.total, code)

    def cancel(self, code: str) -> None:
        """It is not to go on, for a reason of :data:`ENDS`."""
        self._go(Step.CANCEL, self.state.done, self.state.total, code)

    def _go(self, step: Step, done: int, total: int, code: str = "") -> None:
        phase = STEPS.get((self.state.phase, step))
        if phase is None:
            raise UnexpectedStep(f"a command that is {self.state.phase.name.lower()} cannot {step.name.lower()}")
        self.state = State(phase, done, total, code, self._now_ms())
        self._told(self)


class Journal:
    """The commands that run, and the last that did.

    :param now_ms: the wall clock, Unix milliseconds.
    :param told: called with a command after each of its steps.
    """

    def __init__(self, now_ms: Callable[[], int], told: Callable[[Command], object]) -> None:
        self._now_ms = now_ms
        self._told = told
        self._running: dict[str, Command] = {}
        self._over: OrderedDict[str, Command] = OrderedDict()

    @property
    def running(self) -> list[Command]:
        """Those that are not over, the oldest first."""
        return list(self._running.values())

    def find(self, order: Order) -> Command | None:
        """The command that ``order`` repeats, or None if its id is new.

        :raises CommandRefused: if the id is none, or was used for another order (S6).
        """
        if not _COMMAND_ID.match(order.command_id):
            raise refused("bad_command_id")
        known = self._running.get(order.command_id) or self._over.get(order.command_id)
        if known is not None and known.order != order:
            raise refused("command_conflict")
        return known

    def accept(self, order: Order) -> Command:
        """Begin the life of a command whose id is new.

        :raises CommandRefused: if as many run as may.
        """
        if len(self._running) >= RUNNING_LIMIT:
            raise refused("too_many_commands")
        command = self._running[order.command_id] = Command(order, self._now_ms, self._stepped)
        return command

    def _stepped(self, command: Command) -> None:
        if command.is_over:
            self._over[command.order.command_id] = self._running.pop(command.order.command_id)
            if len(self._over) > REMEMBERED:
                self._over.popitem(last=False)
        self._told(command)
