"""What each operation of a command does with the Edge's own parts (rules S7, S8, S10, S11)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from twisted.internet.defer import Deferred

from iop.core.commands import Command, refused
from iop.core.selectors import NODE_KEY, PROVIDER_KEY

if TYPE_CHECKING:
    from iop.core.commands import Wanted
    from iop.core.pool import Pool
    from iop.edge.config import NodeTable
    from iop.edge.door import Door
    from iop.edge.events import Events
    from iop.edge.nodes import Nodes
    from iop.interfaces import IClock

#: How often a drain looks at what is left, and so tells of it at most.
LOOK_SECONDS: Final = 0.25
#: Whom a drain is of if it is no Node's: no Node has this name.
_EDGE: Final = ""

_T = TypeVar("_T")

#: Does what a command is for: begins it, and has it end unless it returns, which says that all of it is done.
Work: TypeAlias = Callable[[Command], Coroutine[Deferred[Any], Any, None]]


class Operations:
    """The Edge's parts, as far as commands change them.

    :param configured: every Node of the catalogue.
    :param flush: forgets every lease; answers how many there were.
    :param resync: has the projection in force sent again.
    :param reload: does what SIGHUP does.
    """

    def __init__(
        self,
        configured: Sequence[NodeTable],
        nodes: Nodes,
        pool: Pool,
        door: Door,
        events: Events,
        clock: IClock,
        *,
        flush: Callable[[], int],
        resync: Callable[[], Coroutine[Deferred[Any], Any, None]],
        reload: Callable[[], Deferred[None]],
    ) -> None:
        self._configured = configured
        self._nodes = nodes
        self._pool = pool
        self._door = door
        self._events = events
        self._clock = clock
        self._flush_leases = flush
        self._resync = resync
        self._reload = reload
        #: The drains that run, and of whom they are.
        self._drains: dict[Command, frozenset[str]] = {}

    def work(self, wanted: Wanted) -> Work:
        """What does ``wanted``.

        :raises CommandRefused: if its selector matches nothing.
        """
        match wanted.operation:
            case "edge.drain":
                return partial(self._drain_edge, wanted.deadline_seconds)
            case "edge.resume":
                return self._resume_edge
            case "node.drain":
                return partial(self._drain_nodes, self._chosen_nodes(wanted), wanted.deadline_seconds)
            case "node.resume":
                return partial(self._resume_nodes, self._chosen_nodes(wanted))
            case "node.disconnect":
                return partial(self._each, self._chosen_nodes(wanted), self._nodes.dismiss)
            case "provider.disable":
                return partial(self._each, self._chosen_providers(wanted), lambda names: self._pool.disable(*names))
            case "provider.enable":
                return partial(self._each, self._chosen_providers(wanted), lambda names: self._pool.enable(*names))
            case "leases.flush":
                return self._flush
            case "projection.resync":
                return partial(self._one, self._resync)
            case "config.reload":
                return partial(self._one, self._reload)
        raise refused("unknown_operation")

    # -- whom it is about ---------------------------------------------------------------------------------------------

    def _chosen_nodes(self, wanted: Wanted) -> list[str]:
        return _some(
            table.name for table in self._configured if wanted.selector.matches({**table.labels, NODE_KEY: table.name})
        )

    def _chosen_providers(self, wanted: Wanted) -> list[tuple[str, str]]:
        return _some(
            (table.name, provider.id)
            for table in self._configured
            for provider in table.providers
            if wanted.selector.matches({**provider.labels, NODE_KEY: table.name, PROVIDER_KEY: provider.id})
        )

    # -- what is done -------------------------------------------------------------------------------------------------

    async def _drain_edge(self, deadline_seconds: int, command: Command) -> None:
        if not self._door.is_closed:
            self._door.is_closed = True
            self._events.edge_draining()
        await self._drained(command, frozenset({_EDGE}), lambda: self._door.inside, deadline_seconds)

    async def _resume_edge(self, command: Command) -> None:
        command.begin(1)
        if self._door.is_closed:
            self._door.is_closed = False
            self._events.edge_resumed()
        self._end_drains(frozenset({_EDGE}))

    async def _drain_nodes(self, names: Sequence[str], deadline_seconds: int, command: Command) -> None:
        for name in names:
            if not self._pool.is_held(name):
                self._pool.hold(name)
                self._events.node_draining(name)
        await self._drained(command, frozenset(names), partial(self._in_flight, frozenset(names)), deadline_seconds)

    async def _resume_nodes(self, names: Sequence[str], command: Command) -> None:
        command.begin(len(names))
        # before anything is given to a Node again, which its drain would wait for
        self._end_drains(frozenset(names))
        for name in names:
            if self._pool.is_held(name):
                self._pool.resume(name)
                self._events.node_resumed(name)

    async def _flush(self, command: Command) -> None:
        command.begin(self._flush_leases())

    async def _one(
        self, what: Callable[[], Deferred[None] | Coroutine[Deferred[Any], Any, None]], command: Command
    ) -> None:
        command.begin(1)
        await what()

    async def _each(self, targets: Sequence[_T], what: Callable[[_T], object], command: Command) -> None:
        command.begin(len(targets))
        for target in targets:
            what(target)

    # -- drains -------------------------------------------------------------------------------------------------------

    async def _drained(
        self, command: Command, whose: frozenset[str], left: Callable[[], int], deadline_seconds: int
    ) -> None:
        """Wait until nothing is left, or somebody ends the command, or its time is over."""
        total = left()
        command.begin(total)
        until = self._clock.boot() + deadline_seconds
        self._drains[command] = whose
        try:
            while not command.is_over and (remaining := left()):
                if total - remaining > command.state.done:
                    command.advance(total - remaining)
                seconds = until - self._clock.boot()
                if seconds <= 0:
                    command.fail("deadline")
                else:
                    await self._pass(min(LOOK_SECONDS, seconds))
        finally:
            del self._drains[command]

    def _end_drains(self, whose: frozenset[str]) -> None:
        """End those of anybody in ``whose``: they would wait for what goes on."""
        for command in [command for command, names in self._drains.items() if names & whose]:
            if not command.is_over:
                command.cancel("resumed")

    def _in_flight(self, names: frozenset[str]) -> int:
        return sum(
            self._pool.taken(table.name, provider.id)
            for table in self._configured
            if table.name in names
            for provider in table.providers
        )

    def _pass(self, seconds: float) -> Deferred[None]:
        passed: Deferred[None] = Deferred()
        self._clock.call_later(seconds, lambda: passed.callback(None))
        return passed


def _some(chosen: Iterable[_T]) -> list[_T]:
    targets = list(chosen)
    if not targets:
        raise refused("nothing_selected")
    return targets
