"""Events as they come: over lost calls, a Control Plane that restarts and an Edge that is away for a while."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from twisted.internet.task import deferLater

from iop.cli.answers import plain
from iop.cli.operator import OperatorUnreachable
from iop.core import selectors
from iop.errors import ApiRefused, IopError, NotFound

if TYPE_CHECKING:
    from iop.cli.operator import Command, Commanded, CommandState, Event, Operator

#: Seconds that one call waits for events; and while something has to be asked again.
WAIT_SECONDS: Final = 10
SHORT_SECONDS: Final = 1
#: Seconds without an answer after which it is given up.
PATIENCE_SECONDS: Final = 120.0
#: In the order in which a command goes through them; the last three are alternatives.
_PHASES: Final = ("accepted", "running", "succeeded", "failed", "cancelled")
FINAL: Final = frozenset(_PHASES[2:])
#: Statuses of answers that the same call may not get again.
_PASSING: Final = frozenset({429, 502, 503, 504})


class Feed:
    """The events of one Edge, or of all without ``edge``, in batches. Those that are kept already come first."""

    def __init__(self, operator: Operator, edge: str | None) -> None:
        self._operator = operator
        self._edge = edge
        self._stream = ""
        self._after = 0

    async def next(self, wait_seconds: int) -> tuple[list[Event], bool]:
        """The events since the last call, and whether others are lost.

        :param wait_seconds: how long to wait for one if there is none.
        :raises OperatorUnreachable: if there was no answer for two minutes; other errors of the operator's calls too.
        """
        patience = Patience(self._operator)
        while True:
            try:
                heard = await self._operator.events(self._edge, self._after, wait_seconds)
            except (OperatorUnreachable, ApiRefused) as error:
                await patience.after(error)
                continue
            before, self._stream = self._stream, heard.stream
            if before and before != heard.stream:
                # numbered by another process: from its beginning, with the next call
                self._after = 0
                return [], True
            self._after = heard.newest
            return heard.events, heard.lost and bool(before)


class Patience:
    """How long something is tried again."""

    def __init__(self, operator: Operator) -> None:
        self._reactor = operator.reactor
        self._until: float = self._reactor.seconds() + PATIENCE_SECONDS

    async def after(self, error: IopError) -> None:
        """Wait a moment before what failed with ``error`` is tried again; raises it if that is in vain or too late."""
        in_vain = isinstance(error, ApiRefused) and error.status not in _PASSING
        if in_vain or self._reactor.seconds() > self._until:
            raise error
        await deferLater(self._reactor, SHORT_SECONDS)


class Shown:
    """What is heard, as lines on stdout: for people, or JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def answered(self, answer: Commanded) -> None:
        """How a command stands, as its Edge answered."""
        self._print(answer.model_dump(), _state_line(answer.edge, answer.command))

    def happened(self, event: Event) -> None:
        """An event."""
        line = _state_line(event.edge, event.command) if event.command else _event_line(event)
        self._print(event.model_dump(), line)

    def missed(self) -> None:
        """There were events that nobody will see."""
        click.echo("Some events were missed.", err=True)

    def nothing(self) -> None:
        """There are no events."""
        click.echo("Nothing was told since the Control Plane started. Which Edges there are: iop edge list", err=True)

    def end(self) -> None:
        """Nothing more comes."""

    def _print(self, document: dict[str, object], line: str) -> None:
        click.echo(json.dumps(document) if self._as_json else line)


class Bar(Shown):
    """The same lines above a bar that shows how much of a command is done, on a terminal."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
        self._progress = Progress(*columns, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def answered(self, answer: Commanded) -> None:
        """See :class:`Shown`."""
        super().answered(answer)
        self._move(answer.command)

    def happened(self, event: Event) -> None:
        """See :class:`Shown`."""
        super().happened(event)
        if event.command:
            self._move(event.command)

    def end(self) -> None:
        """Take the bar away."""
        self._progress.stop()

    def _move(self, state: CommandState) -> None:
        # an operation that waits for nothing has no length
        self._progress.update(self._task, description=state.phase, completed=state.done, total=state.total or None)
        self._progress.refresh()

    def _print(self, document: dict[str, object], line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


async def watch(operator: Operator, edge: str, command: Command, shown: Shown) -> CommandState:
    """Give ``edge`` a command, or ask how it stands, and follow it to its end, which is the result.

    Events of the Nodes that it names are shown too; without ``node=`` in its selector, those of all. Whenever some may
    have been missed the Edge is asked again, with the same command.
    """
    feed = Feed(operator, edge)
    await feed.next(0)
    answer = await operator.command(edge, command)
    shown.answered(answer)
    state, node = answer.command, dict(selectors.parse(command.selector).terms).get("node", "")
    doubt: Patience | None = None
    while state.phase not in FINAL:
        events, lost = await feed.next(SHORT_SECONDS if doubt else WAIT_SECONDS)
        if lost:
            shown.missed()
        for event in events:
            told = event.command
            if told is None:
                if node in ("", event.node) or not event.node:
                    shown.happened(event)
            elif told.command_id == command.command_id and _advances(told, state):
                state = told
                shown.happened(event)
        if lost or any(event.event in ("edge.connected", "edge.disconnected") for event in events):
            doubt = doubt or Patience(operator)
        if doubt and state.phase not in FINAL:
            try:
                answer = await operator.command(edge, command)
            except (NotFound, OperatorUnreachable, ApiRefused) as error:
                await doubt.after(error)
                continue
            doubt = None
            if _advances(answer.command, state):
                state = answer.command
                shown.answered(answer)
    return state


async def follow(operator: Operator, edge: str | None, shown: Shown, *, on: bool) -> None:
    """Show the events that are kept, and with ``on`` what comes, for ever."""
    feed = Feed(operator, edge)
    events, _ = await feed.next(0)
    while True:
        for event in events:
            shown.happened(event)
        if not on:
            if not events:
                shown.nothing()
            return
        events, lost = await feed.next(WAIT_SECONDS)
        if lost:
            shown.missed()


def _advances(told: CommandState, shown: CommandState) -> bool:
    """Whether ``told`` is later than what was shown: answers and events overtake each other."""
    return (_PHASES.index(told.phase), told.done) > (_PHASES.index(shown.phase), shown.done)


def _state_line(edge: str, state: CommandState) -> str:
    of_total = f"  {state.done}/{state.total}" if state.total else ""
    why = f"  {state.code}: {state.message}" if state.code else ""
    return plain(f"{state.at}  {edge}  {state.operation}  {state.phase}{of_total}{why}  {state.command_id}")


def _event_line(event: Event) -> str:
    node = f"  {event.node}" if event.node else ""
    why = f"  {event.code}: {event.message}" if event.code else ""
    return plain(f"{event.at}  {event.edge}  {event.event}{node}{why}")
