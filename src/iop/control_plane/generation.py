"""Notices mutations that other processes made: a host-local command writes to the store, not to this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from iop.errors import IopError

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from iop.control_plane.edges import Edges
    from iop.interfaces import IClock, IStore

#: So a change is noticed well within a second.
INTERVAL_SECONDS = 0.25


class GenerationWatch:
    """Reads the generation again and again and publishes each new one.

    :ivar published: the newest generation that the Edges were sent, or 0.
    :ivar trouble: why the last reading failed, or an empty string.
    """

    def __init__(self, store: IStore, edges: Edges, clock: IClock) -> None:
        self._store = store
        self._edges = edges
        self._clock = clock
        self.published = 0
        self._next: IDelayedCall | None = None
        self._running = False
        self._log = Logger()
        self.trouble = ""

    def start(self) -> None:
        """Begin to watch."""
        self._running = True
        self._look()

    def stop(self) -> None:
        """Stop watching; a reading under way ends without effect."""
        self._running = False
        if self._next is not None and self._next.active():
            self._next.cancel()

    def _look(self) -> None:
        Deferred.fromCoroutine(self._read()).addErrback(
            lambda failure: self._log.failure("control.generation.watch_failed", failure)
        ).addBoth(self._again)

    async def _read(self) -> None:
        try:
            generation = await self._store.projections.generation()
            if generation > self.published and self._running:
                await self._edges.publish(generation)
                self.published = generation
        except IopError as error:
            if not self.trouble:
                self._log.warn("control.store.trouble", code=error.code)
            self.trouble = error.message
        else:
            self.trouble = ""

    def _again(self, _: object) -> None:
        if self._running:
            self._next = self._clock.call_later(INTERVAL_SECONDS, self._look)
