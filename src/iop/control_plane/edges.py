"""The connected Edges: who is there, what each is told, and the sessions that a barrier waits for (E3, E10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from iop.control_plane.edge_link import EdgeLink, Session
from iop.control_plane.slices import in_slices, later
from iop.errors import IdentityRefused, NotFound, StoreBusy, StoreUnavailable
from iop.interfaces import IPeerApplication

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iop.control_plane.events import Events
    from iop.control_plane.leases import LeaseDesk
    from iop.control_plane.projections import Publisher
    from iop.crypto.issuer import PinnedIssuers
    from iop.interfaces import IClock, IStore

#: How long to wait for news of a session before the state is looked at again.
LOOK_AGAIN_SECONDS = 0.1
#: How long until the end of a session is written again that the store did not take.
END_AGAIN_SECONDS = 1.0


class Edges:
    """Every Edge connection of this Control Plane.

    :param acknowledge_seconds: how long an Edge may take to acknowledge a projection before it is cut off (E10).
    """

    def __init__(
        self,
        *,
        store: IStore,
        publisher: Publisher,
        desk: LeaseDesk,
        events: Events,
        pinned: PinnedIssuers,
        clock: IClock,
        deployment_id: str,
        acknowledge_seconds: float,
    ) -> None:
        self.store = store
        self.publisher = publisher
        self.desk = desk
        self.events = events
        self.pinned = pinned
        self.clock = clock
        self.deployment_id = deployment_id
        self.acknowledge_seconds = acknowledge_seconds
        self._links: dict[str, EdgeLink] = {}
        #: How often something was told by :meth:`changed`; see :meth:`change`.
        self.changes = 0
        self._watchers: list[Deferred[None]] = []
        self._draining = False
        self._log = Logger()

    def application(self) -> IPeerApplication:
        """What serves one new connection."""
        return EdgeLink(self)

    async def publish(self, generation: int) -> None:
        """Close the connections of denied Edges, send every other one what it lacks of ``generation``."""
        await self.desk.settled()
        denied = {name for kind, name in await self.store.denials.all() if kind == "edge"}
        for edge, link in list(self._links.items()):
            if edge in denied:
                link.close(IdentityRefused("this Edge was denied by an operator"))
        await self.publisher.advance(generation)
        await in_slices(self.clock, self._refreshing(generation))

    def _refreshing(self, generation: int) -> Iterator[None]:
        for link in list(self._links.values()):
            link.refresh(generation)
            yield

    def change(self, since: int, within_seconds: float) -> Deferred[None]:
        """Fires when a session acknowledged or ended, or after ``within_seconds`` at the latest.

        :param since: what :attr:`changes` was when the caller last looked; fires at once if there was one since then.
        """
        if self.changes > since:
            return succeed(None)
        turn: Deferred[None] = Deferred()
        self._watchers.append(turn)
        call = self.clock.call_later(within_seconds, self.changed)

        def settled(result: None) -> None:
            if call.active():
                call.cancel()

        return turn.addCallback(settled)

    def changed(self) -> None:
        """Tell whoever waits that a session acknowledged or ended."""
        self.changes += 1
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.callback(None)

    def claim(self, edge: str, link: EdgeLink) -> bool:
        """Make ``link`` the one connection of ``edge``; False if there is one already (E3)."""
        return self._links.setdefault(edge, link) is link

    def release(self, edge: str, link: EdgeLink) -> bool:
        """Forget ``link``, if it is the one connection of ``edge``; answers whether it was."""
        if self._links.get(edge) is not link:
            return False
        del self._links[edge]
        self.publisher.forget(edge)
        return True

    async def end(self, edge: str, session: str) -> None:
        """Have it on record that a session ended: until then every barrier waits for it, so this is not given up.

        What is not on record when this process stops, the next one ends.
        """
        now_ms, is_told = self.clock.wall_ms(), False
        while True:
            try:
                await self.store.edge_sessions.end(session, now_ms)
            except (StoreBusy, StoreUnavailable) as error:
                if self._draining:
                    return
                if not is_told:
                    self._log.error("control.edge.session_row_left_open", edge=edge, code=error.code)
                    is_told = True
                await later(self.clock, END_AGAIN_SECONDS)
            else:
                self.changed()
                return

    def names(self) -> list[str]:
        """The connected Edges, by name."""
        return sorted(self._links)

    def sessions(self) -> list[Session]:
        """The Edges whose hello was accepted, by name."""
        sessions = [link.session() for _, link in sorted(self._links.items())]
        return [session for session in sessions if session.since_ms]

    def link(self, edge: str) -> EdgeLink:
        """The connection of an Edge.

        :raises NotFound: there is none.
        """
        link = self._links.get(edge)
        if link is None:
            raise NotFound("this Edge is not connected here", hint="iop edge list tells which are")
        return link

    async def drain(self) -> None:
        """Let every connection finish what is in flight and close; done when all are gone."""
        self._draining = True
        for link in list(self._links.values()):
            link.drain()
        while self._links:
            await self.change(self.changes, LOOK_AGAIN_SECONDS)
