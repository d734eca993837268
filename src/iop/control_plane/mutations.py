"""What stands between a mutation and its answer: every Edge has it, or can no longer act on what was (E10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from iop.control_plane.edges import LOOK_AGAIN_SECONDS
from iop.core.barrier import Waiting, barrier
from iop.errors import NotConfirmed, StoreBusy, StoreUnavailable
from iop.records import Barrier
from iop.units import rfc3339

if TYPE_CHECKING:
    from typing import TypeVar

    from iop.control_plane.edges import Edges
    from iop.control_plane.metrics import ControlPlaneMetrics
    from iop.interfaces import IClock, IStore
    from iop.records import Committed

    T = TypeVar("T")

#: Beyond the time an Edge has to acknowledge: for closing it and ending its row.
CUT_OFF_SECONDS = 5.0


class Mutations:
    """Runs the barrier for mutations of this process.

    :param window_ms: lease TTL + skew in milliseconds.
    :param acknowledge_seconds: how long an Edge may take before it is cut off.
    """

    def __init__(
        self,
        *,
        store: IStore,
        edges: Edges,
        clock: IClock,
        metrics: ControlPlaneMetrics,
        window_ms: int,
        acknowledge_seconds: float,
    ) -> None:
        self._store = store
        self._edges = edges
        self._clock = clock
        self._metrics = metrics
        self._window_ms = window_ms
        self._patience_seconds = acknowledge_seconds + CUT_OFF_SECONDS
        self._log = Logger()

    async def complete(self, committed: Committed[T]) -> Barrier:
        """Publish what was committed and wait for the Edges. The change holds, whatever the store says meanwhile.

        :raises NotConfirmed: if that took longer than an Edge may take and cutting it off takes.
        """
        give_up = self._clock.boot() + self._patience_seconds
        published = False
        outcome: Waiting | Barrier
        while True:
            seen = self._edges.changes
            try:
                if not published:
                    await self._edges.publish(committed.generation)
                    published = True
                outcome = await self._look(committed)
            except (StoreBusy, StoreUnavailable):
                # what it says of itself is true of this reading, not of the change
                outcome = Waiting(frozenset())
            if isinstance(outcome, Barrier):
                self._metrics.complete(outcome)
                self._log.info(
                    "control.mutation.complete",
                    generation=outcome.generation,
                    acknowledged=outcome.acknowledged,
                    cut_off=outcome.cut_off,
                    unconfirmed=outcome.unconfirmed,
                )
                return outcome
            if self._clock.boot() >= give_up:
                self._metrics.not_confirmed.inc()
                raise NotConfirmed(
                    "the change is committed, but not every Edge was seen to follow it",
                    hint=f"nothing can act on what was before after {self._effective(committed)}",
                )
            await self._edges.change(seen, LOOK_AGAIN_SECONDS)

    async def _look(self, committed: Committed[T]) -> Waiting | Barrier:
        now_ms = self._clock.wall_ms()
        sessions = await self._store.edge_sessions.since(now_ms - self._window_ms)
        return barrier(sessions, committed.generation, committed.committed_ms, now_ms, self._window_ms, running=True)

    def _effective(self, committed: Committed[T]) -> str:
        return rfc3339(committed.committed_ms + self._window_ms)
