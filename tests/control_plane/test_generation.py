"""The watch over the store's generation: what is published, and what a store in trouble looks like."""

from __future__ import annotations

from twisted.internet.defer import fail

from iop.control_plane.generation import INTERVAL_SECONDS
from iop.errors import StoreUnavailable
from tests.control_plane.world import PlayedEdge, WorldCase


class WatchTests(WorldCase):
    def setUp(self) -> None:
        super().setUp()
        self.edge = PlayedEdge()
        self.world.enrolled(edge=self.edge)
        self.watch = self.world.plane.watch
        self.addCleanup(self.watch.stop)

    def test_each_new_generation_is_published_once(self) -> None:
        self.watch.start()
        for name in ("bob", "carol"):
            self.world.principal(name)
            self.world.pass_time(3 * INTERVAL_SECONDS)
        self.assertEqual(len(self.edge.received), 2)

    def test_trouble_is_told_while_it_lasts(self) -> None:
        """What is not read is not ready; what changed meanwhile is published once the store answers."""
        trouble = self.patch(
            self.world.store.projections, "generation", lambda: fail(StoreUnavailable("the database failed"))
        )
        self.watch.start()
        self.assertEqual(self.watch.trouble, "the database failed")
        self.world.principal("bob")
        self.world.pass_time(3 * INTERVAL_SECONDS)
        self.assertEqual(self.edge.received, [])
        trouble.restore()
        self.world.pass_time(2 * INTERVAL_SECONDS)
        self.assertEqual((self.watch.trouble, len(self.edge.received)), ("", 1))

    def test_what_could_not_be_published_is_published_later(self) -> None:
        trouble = self.patch(self.world.store.denials, "all", lambda: fail(StoreUnavailable("the database failed")))
        self.world.principal("bob")
        self.watch.start()
        self.assertEqual(self.edge.received, [])
        trouble.restore()
        self.world.pass_time(2 * INTERVAL_SECONDS)
        self.assertEqual(len(self.edge.received), 1)

    def test_stopped(self) -> None:
        """Nothing is read or published after it, and no timer is left."""
        before = len(self.world.clock.reactor.getDelayedCalls())
        self.watch.start()
        self.watch.stop()
        self.assertEqual(len(self.world.clock.reactor.getDelayedCalls()), before)
        self.world.principal("bob")
        self.world.pass_time(1)
        self.assertEqual(self.edge.received, [])
