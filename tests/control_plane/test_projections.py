"""What each Edge is to know, as the store changes: readings that are followed, changes and pages that are sent."""

from __future__ import annotations

import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.control_plane.pages import Pages
from iop.control_plane.projections import Publisher
from iop.control_plane.sent import Offer, Sent, Word
from iop.control_plane.views import Views
from iop.core.projection import BUCKETS, Draft, Projection
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.receipt import verify_receipt
from iop.crypto.tokens import mint
from iop.errors import ProjectionRefused, StoreBusy, UnexpectedMessage
from iop.interfaces import IProjections
from iop.records import (
    NewSlot,
    PrincipalView,
    ProjectionSnapshot,
    Reading,
    RouteEntry,
    SealedSecret,
    SlotRecord,
    SlotState,
    TokenEntry,
    TokenKind,
)
from iop.store.memory import MemoryStore
from iop.testing.clock import FakeClock
from iop.wire import control_pb2
from iop.wire.convert import delta_from_wire, route_from_wire, token_from_wire
from tests.configurations import DEPLOYMENT
from tests.control_plane.world import applied, change_of, refused, result_of

T = TypeVar("T")

EDGES = ("edge-a", "edge-b", "edge-c")
SEALED = SealedSecret("key", b"wrapped", b"box")
#: So small that a few entries make several pages, and a few more no change any more.
SMALL_PAGE = 600


def run(coroutine: Coroutine[Deferred[Any], Any, T]) -> T:
    """What a coroutine that waits for nothing comes to."""
    return result_of(Deferred.fromCoroutine(coroutine))


def known_to(edge: str, reading: Reading) -> Projection:
    """What a whole reading lets ``edge`` know."""
    views = [view for view in reading.principals if not view.edges or edge in view.edges]
    return Projection.build(
        ProjectionSnapshot(
            reading.generation,
            tuple(token for view in views for token in view.tokens),
            tuple(route for view in views for route in view.routes),
        )
    )


@implementer(IProjections)
@dataclass
class Readings:
    """A store's projections: each reading waits until it is let go, or has forgotten what changed, if a test says so.

    :ivar begun: the generations since which was read.
    """

    store: MemoryStore
    held: bool = False
    forgetful: bool = False
    begun: list[int] = field(default_factory=list)
    waiting: list[Deferred[None]] = field(default_factory=list)

    def generation(self) -> Deferred[int]:
        return self.store.projections.generation()

    def reading(self, since: int) -> Deferred[Reading]:
        self.begun.append(since)
        reading = self.store.projections.reading(0 if self.forgetful else since)
        if not self.held:
            return reading
        turn: Deferred[None] = Deferred()
        self.waiting.append(turn)
        return turn.addCallback(lambda _: reading)

    def let_go(self) -> None:
        """Answer the reading that began first; what it says is from when it began."""
        self.waiting.pop(0).callback(None)


class Rig:
    """A store and a publisher that follows it."""

    def __init__(self, page_bytes: int = SMALL_PAGE) -> None:
        folder = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.store = MemoryStore(DEPLOYMENT, self.clock.wall_ms)
        self.issuer = Issuer.create(folder / "issuer.json")
        (folder / "issuer.json").unlink()
        folder.rmdir()
        self.readings = Readings(self.store)
        #: How often what was read was to be spared the garbage collector.
        self.spared = 0
        self.publisher = Publisher(self.readings, self.issuer, DEPLOYMENT, self.clock, Pages(page_bytes), self._spare)
        self.slots: list[SlotRecord] = []
        self.names = 0

    def _spare(self) -> None:
        self.spared += 1

    @property
    def generation(self) -> int:
        """The store's."""
        return result_of(self.store.projections.generation())

    def truth(self, edge: str) -> Projection:
        """What the store says now that ``edge`` may know."""
        return known_to(edge, result_of(self.store.projections.reading(0)))

    def principal(self, *edges: str) -> str:
        """A principal, limited to ``edges``, with a token, a slot and a route."""
        self.names += 1
        made = result_of(
            self.store.principals.create(f"p{self.names}", [mint(TokenKind.USE).record], "host:test", edges)
        )
        principal = made.value.principal
        new = NewSlot(f"slot-{self.names}", principal, "main", "openai", "lab", SEALED)
        self.slots.append(result_of(self.store.slots.create(new, "token:test")).value)
        self.route(len(self.slots) - 1)
        return principal

    def route(self, slot: int, model: str = "small") -> None:
        """Make the route of a slot, or change it."""
        owner = self.slots[slot]
        routes = result_of(self.store.routes.all(owner.principal))
        revision = next((route.revision for route in routes if route.model == model), None)
        result_of(self.store.routes.put(owner.principal, model, owner.slot, "up", "", revision, "token:test"))

    def limit(self, number: int, edges: tuple[str, ...]) -> None:
        """Limit a principal to ``edges`` instead."""
        result_of(self.store.principals.limit(f"p{number + 1}", edges, "host:test"))

    def switch(self, slot: int) -> None:
        """Disable a slot that is active, enable one that is not."""
        before = self.slots[slot]
        state = SlotState.DISABLED if before.state is SlotState.ACTIVE else SlotState.ACTIVE
        self.slots[slot] = result_of(
            self.store.slots.set_state(before.principal, before.slot, state, before.revision, "token:test")
        ).value


class Follower:
    """An Edge that applies what it is sent, with the product's own projections, and the session that sends it."""

    def __init__(self, rig: Rig, edge: str) -> None:
        self.rig = rig
        self.edge = edge
        self.sent = Sent(rig.publisher.pages)
        self.under_way: list[Offer] = []
        self.whole = 0
        publication = run(rig.publisher.enrol(edge))
        self.sent.wrote(publication.projection, whole=True)
        self.current = self.assembled(rig.publisher.pages.first(publication.projection))
        self.sent.acknowledge(applied(rig.publisher.pages.first(publication.projection)))

    def assembled(self, first: control_pb2.PrincipalProjection) -> Projection:
        """A whole projection, page by page."""
        draft = Draft(Projection.empty(0))
        page: control_pb2.PrincipalProjection | control_pb2.ProjectionPageResponse = first
        bucket = 0
        while True:
            draft.add(map(token_from_wire, page.tokens), map(route_from_wire, page.routes))
            if not page.next_bucket:
                break
            assert page.next_bucket > bucket
            bucket = page.next_bucket
            page = self.sent.page(control_pb2.ProjectionPageRequest(generation=first.generation, bucket=bucket))
            assert page.kept
        made = draft.finish(first.generation)
        assert made.digest == first.digest
        return made

    def send(self) -> bool:
        """Write what is newer, if something is."""
        run(self.rig.publisher.advance(self.rig.generation))
        publication = self.rig.publisher.publication(self.edge)
        if not self.sent.lacks(publication.projection.generation):
            return False
        offer = self.sent.next(publication)
        self.sent.wrote(offer.projection, whole=offer.whole)
        self.under_way.append(offer)
        return True

    def take(self) -> Word:
        """Have what was written first arrive, and the answer to it."""
        offer = self.under_way.pop(0)
        return self.sent.answered(offer, self.answer(offer.message))

    def answer(self, message: control_pb2.PrincipalProjectionApplyRequest) -> control_pb2.ProjectionOutcome:
        """Apply a message, or refuse it."""
        if message.HasField("projection"):
            self.whole += 1
            new = self.assembled(message.projection)
        else:
            delta = delta_from_wire(message.delta)
            if delta.base_generation != self.current.generation:
                return refused(self.current.generation, "base_mismatch")
            try:
                new = self.current.changed(delta)
            except ProjectionRefused as refusal:
                return refused(self.current.generation, refusal.reason)
            if new.digest != message.delta.digest:
                return refused(self.current.generation, "digest_mismatch")
        assert new.generation > self.current.generation
        self.current = new
        return applied(change_of(message))

    def settle(self) -> None:
        """Take everything, and everything that follows from it."""
        while self.under_way or self.send():
            self.take()


class FollowingTests(SynchronousTestCase):
    """Random histories of a store, followed by Edges that get everything late, damaged or at once."""

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_every_edge_always_holds_one_generation_exactly(self, data: st.DataObject) -> None:
        """P40, C13, E11, E12, E14: whatever happens, what an Edge holds is what one whole reading says it may know."""
        rig = Rig()
        followers = [Follower(rig, edge) for edge in EDGES]
        truth = {(rig.generation, edge): rig.truth(edge).digest for edge in EDGES}
        some_edges = st.lists(st.sampled_from(EDGES), unique=True, max_size=2).map(tuple)

        def check() -> None:
            for follower in followers:
                assert truth[follower.current.generation, follower.edge] == follower.current.digest, follower.edge

        for _ in range(data.draw(st.integers(1, 25))):
            known = len(rig.slots)
            step = data.draw(st.sampled_from(["new", "limit", "route", "switch", "send", "take", "damage", "forget"]))
            follower = data.draw(st.sampled_from(followers))
            if step == "new" or (not known and step in ("limit", "route", "switch")):
                rig.principal(*data.draw(some_edges))
            elif step == "limit":
                rig.limit(data.draw(st.integers(0, known - 1)), data.draw(some_edges))
            elif step == "route":
                rig.route(data.draw(st.integers(0, known - 1)), data.draw(st.sampled_from(["small", "large"])))
            elif step == "switch":
                rig.switch(data.draw(st.integers(0, known - 1)))
            elif step == "send":
                follower.send()
            elif step == "take" and follower.under_way:
                follower.take()
            elif step == "damage" and not follower.under_way:
                # it is the Edge's memory that is wrong: the change that comes next does not fit
                held = follower.current
                follower.current = Projection.empty(held.generation)
                rig.principal()
                truth |= {(rig.generation, edge): rig.truth(edge).digest for edge in EDGES}
                follower.settle()
            elif step == "forget":
                rig.readings.forgetful = not rig.readings.forgetful
            truth |= {(rig.generation, edge): rig.truth(edge).digest for edge in EDGES}
            check()
        for follower in followers:
            follower.settle()
            self.assertEqual(follower.current.generation, rig.generation)
        check()


class ChangeTests(SynchronousTestCase):
    """How one change travels."""

    def test_a_change_travels_as_a_change(self) -> None:
        """C13, E11: one mutation of one principal is in a few hundred bytes, and made once for all who stand there."""
        rig = Rig(page_bytes=4096)
        for _ in range(50):
            rig.principal()
        one, other = Follower(rig, "edge-a"), Follower(rig, "edge-b")
        rig.route(7)
        for follower in (one, other):
            follower.send()
        offers = [follower.under_way[0] for follower in (one, other)]
        self.assertEqual([len(offer.message.delta.routes) for offer in offers], [1, 1])
        self.assertEqual(len(offers[0].message.delta.tokens), 0)
        self.assertIs(offers[0].projection, offers[1].projection)
        self.assertEqual(rig.publisher.pages.change.cache_info().misses, 1)
        self.assertEqual(rig.publisher.pages.first.cache_info().misses, 1)

    def test_what_an_edge_may_not_know_changes_nothing_but_the_generation(self) -> None:
        """E11, E14: an Edge that a change does not touch gets an empty one, since every Edge gets every generation."""
        rig = Rig()
        rig.principal("edge-a")
        stranger, friend = Follower(rig, "edge-b"), Follower(rig, "edge-a")
        self.assertEqual(stranger.current.digest, Projection.empty(1).digest)
        self.assertNotEqual(friend.current.digest, stranger.current.digest)
        rig.route(0)
        stranger.send()
        delta = stranger.under_way[0].message.delta
        self.assertEqual(delta.generation, rig.generation)
        self.assertFalse(delta.tokens or delta.routes or delta.removed_tokens or delta.removed_routes)

    def test_a_large_change_travels_whole(self) -> None:
        """E11: what would be a larger message than a page is sent as a whole projection, page by page."""
        rig = Rig()
        follower = Follower(rig, "edge-a")
        for _ in range(5):
            rig.principal()
        follower.send()
        self.assertTrue(follower.under_way[0].whole)
        self.assertNotEqual(follower.under_way[0].message.projection.next_bucket, 0)
        follower.settle()
        self.assertEqual(follower.current.digest, rig.truth("edge-a").digest)

    def test_a_thousand_entries(self) -> None:
        """P40, E12: many principals, in pages of whole buckets and then one change at a time."""
        rig = Rig(page_bytes=8 * 1024)
        for number in range(700):
            rig.principal(*EDGES[: number % 3])
        followers = [Follower(rig, edge) for edge in EDGES]
        for slot in (3, 4, 5):
            rig.switch(slot)
            for follower in followers:
                follower.settle()
        for follower in followers:
            self.assertEqual(follower.current.digest, rig.truth(follower.edge).digest)
            self.assertEqual(follower.whole, 0, "none but the first")

    def test_pages_follow_each_other(self) -> None:
        """E12: every entry is in exactly one page, and a page ends with the bucket that fills it."""
        rig = Rig()
        for _ in range(12):
            rig.principal()
        projection = run(rig.publisher.enrol("edge-a")).projection
        bucket, tokens, routes = 0, 0, 0
        while True:
            page = rig.publisher.pages.page(projection, bucket)
            tokens, routes = tokens + len(page.tokens), routes + len(page.routes)
            if not page.next_bucket:
                break
            self.assertGreaterEqual(page.ByteSize(), SMALL_PAGE)
            bucket = page.next_bucket
        self.assertEqual((tokens, routes), (12, 12))


class SessionTests(SynchronousTestCase):
    """What an Edge may say, and what follows."""

    def setUp(self) -> None:
        self.rig = Rig()
        self.rig.principal()
        self.follower = Follower(self.rig, "edge-a")
        self.sent = self.follower.sent

    def test_changes_that_follow_a_refused_one(self) -> None:
        """E7: three changes of which the first is refused are followed by one whole projection, not by three."""
        self.follower.current = Projection.empty(self.follower.current.generation)
        for _ in range(3):
            self.rig.switch(0)
            self.follower.send()
        self.assertEqual(self.follower.take(), Word.REFUSED)
        self.assertEqual(self.follower.take(), Word.FOLLOWS)
        self.assertTrue(self.follower.send())
        self.assertEqual(self.follower.take(), Word.FOLLOWS)
        self.assertEqual(self.follower.take(), Word.ACKNOWLEDGED)
        self.assertFalse(self.follower.send())
        self.assertEqual((self.follower.whole, self.sent.acknowledged), (1, self.rig.generation))

    def test_a_whole_projection_that_is_refused(self) -> None:
        """E7: there is nothing else to send, so the session ends."""
        self.follower.current = Projection.empty(self.follower.current.generation)
        self.rig.switch(0)
        self.follower.send()
        self.follower.take()
        self.follower.send()
        offer = self.follower.under_way.pop()
        self.assertTrue(offer.whole)
        self.assertRaises(ProjectionRefused, self.sent.answered, offer, refused(1, "digest_mismatch"))

    def test_pages_of_what_is_not_kept(self) -> None:
        """E12: of what was never sent, and of what was acknowledged and then replaced, there are no pages."""
        first = self.rig.generation
        self.assertTrue(self.page(first, 0).kept)
        self.assertFalse(self.page(first + 1, 1).kept)
        self.rig.switch(0)
        self.follower.send()
        self.assertTrue(self.page(first, BUCKETS - 1).kept)
        self.follower.take()
        self.assertFalse(self.page(first, 1).kept)
        self.assertTrue(self.page(self.rig.generation, 1).kept)

    def test_a_bucket_that_is_none(self) -> None:
        """E12: nobody who reads the rules asks for it."""
        self.assertRaises(UnexpectedMessage, self.page, self.rig.generation, BUCKETS)

    def page(self, generation: int, bucket: int) -> control_pb2.ProjectionPageResponse:
        return self.sent.page(control_pb2.ProjectionPageRequest(generation=generation, bucket=bucket))


class ReadingTests(SynchronousTestCase):
    """When the store is read, and what for."""

    def setUp(self) -> None:
        self.rig = Rig()
        self.rig.principal()
        self.readings = self.rig.readings

    def test_receipts_name_their_edge(self) -> None:
        """E8: one projection is signed for each Edge that is sent it."""
        pinned = PinnedIssuers([self.rig.issuer.public_key])
        for edge in EDGES:
            publication = run(self.rig.publisher.enrol(edge))
            statement = verify_receipt(pinned, publication.receipt, deployment_id=DEPLOYMENT, edge=edge)
            self.assertEqual(
                (statement.generation, statement.digest),
                (publication.projection.generation, self.rig.truth(edge).digest),
            )

    def test_a_reading_that_began_before_stands_for_nothing(self) -> None:
        """E10: whoever enrols while a reading is under way waits for the next, and all such share it."""
        self.readings.held = True
        first = Deferred.fromCoroutine(self.rig.publisher.enrol("edge-a"))
        self.rig.principal()
        others = [Deferred.fromCoroutine(self.rig.publisher.enrol(edge)) for edge in EDGES]
        newest = Deferred.fromCoroutine(self.rig.publisher.advance(self.rig.generation))
        self.readings.let_go()
        self.assertLess(result_of(first).projection.generation, self.rig.generation)
        for other in (*others, newest):
            self.assertNoResult(other)
        self.readings.let_go()
        for other in others:
            self.assertEqual(result_of(other).projection.generation, self.rig.generation)
        self.assertIsNone(result_of(newest))
        self.assertEqual(len(self.readings.begun), 2)

    def test_what_is_held_already_is_not_read_again(self) -> None:
        """E11: after the first reading only what changed since is read, and by nobody who has it."""
        run(self.rig.publisher.enrol("edge-a"))
        before = self.rig.generation
        self.rig.switch(0)
        for _ in range(3):
            run(self.rig.publisher.advance(self.rig.generation))
        self.assertEqual(self.readings.begun, [0, before])

    def test_nothing_new_is_the_same_projection(self) -> None:
        """E12: Edges that come one after another to a store at rest are sent one and the same object."""
        one, other = (run(self.rig.publisher.enrol(edge)).projection for edge in ("edge-a", "edge-b"))
        self.assertIs(one, other)
        self.rig.limit(0, ("edge-a",))
        one, again = (run(self.rig.publisher.enrol("edge-a")).projection for _ in range(2))
        self.assertIs(one, again)

    def test_a_store_in_trouble(self) -> None:
        """Whoever waited for a reading that failed is told; the next one goes on from what was held."""
        run(self.rig.publisher.enrol("edge-a"))
        patch = self.patch(self.readings, "reading", lambda _: fail(StoreBusy("nothing was changed")))
        self.rig.switch(0)
        late = Deferred.fromCoroutine(self.rig.publisher.advance(self.rig.generation))
        self.failureResultOf(late, StoreBusy)
        patch.restore()
        run(self.rig.publisher.advance(self.rig.generation))
        self.assertEqual(self.rig.publisher.publication("edge-a").projection.digest, self.rig.truth("edge-a").digest)

    def test_a_reading_that_makes_no_sense(self) -> None:
        """P40: what cannot be followed is given up as a whole, and the next reading is a whole one."""
        run(self.rig.publisher.enrol("edge-a"))
        token = TokenEntry("token-1", "nobody", b"d" * 32)
        route = RouteEntry("route-1", "nobody", "slot", "openai", "lab", "small", "up", "", 1, 1)
        nonsense = Reading(99, False, (PrincipalView("nobody", frozenset(), (token, token), (route,)),))
        patch = self.patch(self.readings, "reading", lambda _: Deferred.fromCoroutine(answer(nonsense)))
        late = Deferred.fromCoroutine(self.rig.publisher.advance(99))
        self.failureResultOf(late, ProjectionRefused)
        patch.restore()
        run(self.rig.publisher.advance(self.rig.generation))
        self.assertEqual(self.readings.begun, [0, 0])
        self.assertEqual(self.rig.publisher.publication("edge-a").projection.digest, self.rig.truth("edge-a").digest)

    def test_what_does_not_change_is_kept_once(self) -> None:
        """E11: of a principal that changes, what stays is one object for all Edges, those that come later included."""
        views, edges = Views(), ("edge-a", "edge-b")
        for generation in (1, 2):
            tokens = tuple(TokenEntry(f"token-{number}", "p", bytes([number]) * 32) for number in range(generation))
            reading = Reading(generation, generation == 1, (PrincipalView("p", frozenset(edges), tokens, ()),))
            for _ in views.follow(reading, set(edges[:generation])):
                pass
        for token in ("token-0", "token-1"):
            self.assertIsNotNone(views.of("edge-a").token_by_id(token))
            self.assertIs(views.of("edge-a").token_by_id(token), views.of("edge-b").token_by_id(token))

    def test_only_a_whole_reading_is_spared(self) -> None:
        """Whoever reads everything again makes many objects that stay; whoever reads a change does not."""
        run(self.rig.publisher.enrol("edge-a"))
        self.rig.switch(0)
        run(self.rig.publisher.advance(self.rig.generation))
        self.assertEqual(self.rig.spared, 1)
        self.readings.forgetful = True
        self.rig.switch(0)
        run(self.rig.publisher.advance(self.rig.generation))
        self.assertEqual(self.rig.spared, 2)

    def test_an_edge_that_is_gone(self) -> None:
        """Nothing is kept for it alone, and nothing is made for it any more."""
        self.rig.limit(0, ("edge-a",))
        own = run(self.rig.publisher.enrol("edge-a")).projection
        self.rig.publisher.forget("edge-a")
        self.assertIsNot(self.rig.publisher.publication("edge-a").projection, own)
        self.rig.switch(0)
        run(self.rig.publisher.advance(self.rig.generation))
        self.assertEqual(self.rig.publisher.publication("edge-a").projection.digest, Projection.empty(1).digest)


async def answer(reading: Reading) -> Reading:
    """A reading that is there at once."""
    return reading
