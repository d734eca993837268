"""Commands that work on the store itself, on the Control Plane's machine, whether one runs or not (K3, K14).

A mutation is told when it committed, and again when it reached the Edges: a running Control Plane notices it within a
second, and its session rows say when every Edge acknowledged it or was cut off.
"""

from __future__ import annotations

import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import click
from twisted.internet.defer import Deferred

from iop.cli.answers import reached
from iop.cli.main import NOT_CONFIRMED
from iop.cli.reactor import run_in_reactor
from iop.core.barrier import barrier
from iop.errors import StoreBusy, StoreUnavailable
from iop.net.clock import ReactorClock
from iop.records import Barrier, Committed
from iop.store.lock import is_held
from iop.store.sqlite import open_sqlite
from iop.units import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from iop.control_plane.config import ControlPlaneConfig
    from iop.interfaces import IClock, IStore
    from iop.process.role import IReactor

T = TypeVar("T")

#: How often the session rows are read while waiting.
POLL_SECONDS: Final = 0.05
#: How long they are: a Control Plane notices within 1 s and cuts off within the cap of 8 s; the rest is slack.
CONFIRM_SECONDS: Final = 10.0

config_option = click.option(
    "--config",
    "config_path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The Control Plane's configuration.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")


@dataclass(frozen=True, slots=True)
class Reached(Generic[T]):
    """A mutation that committed, and how far it got.

    :param barrier: None if Edges may still act on what was before, until ``effective_ms``.
    """

    committed: Committed[T]
    barrier: Barrier | None
    effective_ms: int

    def as_json(self) -> dict[str, object]:
        """``generation``, ``edges`` (null when not confirmed) and ``effective_by``."""
        counts = self.barrier and {
            "acknowledged": self.barrier.acknowledged,
            "cut_off": self.barrier.cut_off,
            "unconfirmed": self.barrier.unconfirmed,
        }
        return {
            "generation": self.committed.generation,
            "edges": counts,
            "effective_by": rfc3339(self.effective_ms),
        }

    def finish(self, *, as_json: bool) -> None:
        """Say how far it got, unless it was said in JSON, and exit with code 3 if that is not known."""
        by = rfc3339(self.effective_ms)
        if self.barrier is None:
            click.echo(f"Committed, not confirmed: Edges may act on what was before until {by}.", err=True)
            sys.exit(NOT_CONFIRMED)
        if not as_json:
            found = self.barrier
            click.echo(reached(self.committed.generation, found.acknowledged, found.cut_off, found.unconfirmed, by=by))


def actor() -> str:
    """Who the audit says did it: the user this process runs as, whatever the environment claims."""
    user = os.getuid()
    try:
        return f"host:{pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"host:{user}"


def with_store(config: ControlPlaneConfig, work: Callable[[IStore, IClock], Coroutine[Any, Any, T]]) -> T:
    """Open the store, run ``work(store, clock)``, close the store, and answer what ``work`` did. Once per process."""

    async def main(reactor: IReactor) -> T:
        clock = ReactorClock(reactor)
        store = await open_sqlite(config.store.path, config.deployment.id, reactor, clock.wall_ms)
        try:
            return await work(store, clock)
        finally:
            await store.close()

    return run_in_reactor(main)


def mutate(
    config: ControlPlaneConfig,
    change: Callable[[IStore], Deferred[Committed[T]]],
    told: Callable[[Committed[T]], None] = lambda _: None,
) -> Reached[T]:
    """Make a change, call ``told`` once it is durable, and wait until it reached the Edges. Once per process.

    Whatever interrupts the wait, a signal included, the change holds and the answer says that it is not confirmed.
    """
    committed: list[Committed[T]] = []

    async def work(store: IStore, clock: IClock) -> Barrier | None:
        made = await change(store)
        committed.append(made)
        told(made)
        return await confirm(store, made, clock, config.lease.window_ms, lambda: is_held(config.store.path))

    try:
        reached = with_store(config, work)
    except click.Abort:
        if not committed:
            raise
        reached = None
    return Reached(committed[0], reached, committed[0].committed_ms + config.lease.window_ms)


async def confirm(
    store: IStore, committed: Committed[T], clock: IClock, window_ms: int, running: Callable[[], bool]
) -> Barrier | None:
    """Wait until the Edges have what was ``committed``; None if that cannot be said within 10 seconds.

    :param window_ms: lease TTL + skew in milliseconds.
    :param running: whether a Control Plane runs; if none does, nobody is waited for.
    """
    deadline = clock.boot() + CONFIRM_SECONDS
    while True:
        now_ms = clock.wall_ms()
        # asked before the rows are read, so that one which starts in between is not missed but counted as cut off
        alive = running()
        try:
            sessions = await store.edge_sessions.since(now_ms - window_ms)
        except (StoreBusy, StoreUnavailable):
            # the change holds all the same; it may be readable again in time
            pass
        else:
            decided = barrier(sessions, committed.generation, committed.committed_ms, now_ms, window_ms, running=alive)
            if isinstance(decided, Barrier):
                return decided
        if clock.boot() >= deadline:
            return None
        await _pause(clock)


def _pause(clock: IClock) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    clock.call_later(POLL_SECONDS, lambda: over.callback(None))
    return over
