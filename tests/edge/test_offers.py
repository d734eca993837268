"""Projections as a connection offers them: in pages, as deltas, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Final

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from iop.core.projection import BUCKETS, Projection
from iop.core.shards import part_of
from iop.edge import offers
from iop.edge.offers import SLICE_SECONDS, TAKE_SECONDS, WAITING_LIMIT, Change, Offers
from iop.edge.projections import Projections
from iop.errors import (
    FileRefused,
    IopError,
    MalformedFrame,
    PeerDisconnected,
    ProjectionRefused,
    ProjectionSuperseded,
    ProtocolViolation,
    RequestTimedOut,
    TooManyInFlight,
    UnexpectedMessage,
)
from iop.records import ProjectionDelta, ProjectionSnapshot, RouteEntry, TokenEntry
from iop.testing.clock import FakeClock
from iop.testing.recorded import RecordedPeer
from iop.units import Role
from iop.wire import control_pb2
from iop.wire.convert import delta_to_wire, route_to_wire, token_to_wire
from tests.edge.rig import CONTROL_PLANE, DEPLOYMENT, EDGE, identity, receipt_of
from tests.edge.test_turns import EventLoop

APPLIED: Final = control_pb2.PROJECTION_RESULT_APPLIED
HELD: Final = control_pb2.PROJECTION_RESULT_HELD
REFUSED: Final = control_pb2.PROJECTION_RESULT_REFUSED

Outcome = control_pb2.ProjectionOutcome
cuts = st.lists(st.integers(1, BUCKETS - 1), max_size=5, unique=True).map(sorted)


def token(number: int) -> TokenEntry:
    return TokenEntry(f"token-{number}", "ada", number.to_bytes(32, "big"))


def route(number: int, revision: int = 1) -> RouteEntry:
    return RouteEntry(f"route-{number}", "ada", "slot", "openai", "openai", f"model-{number}", "gpt", "", 1, revision)


def generation(number: int, size: int = 6) -> Projection:
    """A generation like no other: a token is gone, one is new, one route is changed."""
    tokens = tuple(token(each) for each in range(number, number + size))
    routes = tuple(route(each, revision=number if each == 0 else 1) for each in range(size))
    return Projection.build(ProjectionSnapshot(number, tokens, routes))


GENERATIONS: Final = {number: generation(number) for number in range(1, 8)}


def entries(projection: Projection, start: int, end: int) -> tuple[list[TokenEntry], list[RouteEntry]]:
    """What stands in the buckets from ``start`` up to ``end``."""
    tokens: list[TokenEntry] = []
    routes: list[RouteEntry] = []
    for number in range(start, end):
        some, more = projection.bucket(number)
        tokens += some
        routes += more
    return tokens, routes


def content(projection: Projection) -> set[TokenEntry | RouteEntry]:
    """Every entry."""
    tokens, routes = entries(projection, 0, BUCKETS)
    return {*tokens, *routes}


def first(projection: Projection, end: int = BUCKETS, digest: bytes | None = None) -> control_pb2.PrincipalProjection:
    """The page that a projection comes with: the buckets up to ``end``."""
    tokens, routes = entries(projection, 0, end)
    return control_pb2.PrincipalProjection(
        generation=projection.generation,
        digest=projection.digest if digest is None else digest,
        tokens=map(token_to_wire, tokens),
        routes=map(route_to_wire, routes),
        next_bucket=end % BUCKETS,
    )


def page(projection: Projection, start: int, end: int = BUCKETS) -> control_pb2.ProjectionPageResponse:
    """A page that was asked for."""
    tokens, routes = entries(projection, start, end)
    return control_pb2.ProjectionPageResponse(
        kept=True,
        tokens=map(token_to_wire, tokens),
        routes=map(route_to_wire, routes),
        next_bucket=end % BUCKETS,
    )


NOT_KEPT: Final = control_pb2.ProjectionPageResponse(kept=False)


def delta(base: Projection, new: Projection) -> control_pb2.ProjectionDelta:
    """What makes one of the other."""
    return delta_to_wire(new.delta_from(base), new.digest)


class OffersCase(SynchronousTestCase):
    """An Edge with one connection after the other, without anybody at the other end."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp())
        self.clock = FakeClock()
        #: What the next projections that come into force wait for; nothing if there is none.
        self.words: list[Deferred[int]] = []
        self.applied: list[Projection] = []
        #: Runs without a word when something is acknowledged that does not come into force.
        self.unanswered = 0
        self.start()

    def start(self) -> None:
        """A new process on what is on disk, with a connection."""
        self.projections = Projections(
            self.directory, DEPLOYMENT, EDGE, self.clock, self.came_into_force, lambda: self.unanswered
        )
        self.projections.load()
        self.connect()

    def connect(self) -> None:
        self.peer = RecordedPeer(identity(Role.CONTROL_PLANE, CONTROL_PLANE))
        self.offers = Offers(self.projections, self.peer, self.clock)

    def came_into_force(self, projection: Projection) -> Deferred[int]:
        self.applied.append(projection)
        return self.words.pop(0) if self.words else succeed(0)

    def offer(self, change: Change) -> Deferred[Outcome]:
        word = self.offers.take(change, receipt_of(change))
        self.clock.advance(0)
        return word

    def answer(self, message: Message | IopError) -> control_pb2.ProjectionPageRequest:
        """Answer the page request that is due; what it asked for."""
        (asked, answer), *rest = self.peer.asked
        self.assertEqual(rest, [], "one at a time")
        self.peer.asked.clear()
        assert isinstance(asked, control_pb2.ProjectionPageRequest)
        if isinstance(message, IopError):
            answer.errback(message)
        else:
            answer.callback(message)
        self.clock.advance(0)
        return asked

    def assertWord(self, word: Deferred[Outcome], result: int, number: int, code: str = "") -> None:
        outcome = self.successResultOf(word)
        self.assertEqual((outcome.result, outcome.generation, outcome.code), (result, number, code))

    def assertInForce(self, number: int) -> None:
        """Exactly that generation is, in memory and on disk."""
        current = self.projections.current
        assert current is not None
        self.assertEqual(current.generation, number)
        self.assertEqual(content(current), content(GENERATIONS[number]))
        self.assertEqual(self.projections.hello(1).held_generation, number)


class WholeTests(OffersCase):
    """Page after page."""

    @given(cuts)
    def test_any_pages(self, places: Sequence[int]) -> None:
        """E12, P40: however a projection is cut into pages, it is asked for in order and in force when all of it is."""
        rmtree(self.directory, ignore_errors=True)
        self.start()
        self.offer(first(GENERATIONS[1]))
        ends = [*places, BUCKETS]
        word = self.offer(first(GENERATIONS[2], ends[0]))
        for start, end in pairwise(ends):
            self.assertNoResult(word)
            self.assertInForce(1)
            asked = self.answer(page(GENERATIONS[2], start, end))
            self.assertEqual((asked.generation, asked.bucket), (2, start))
        self.assertWord(word, APPLIED, 2)
        self.assertInForce(2)

    def test_pages_that_do_not_fit(self) -> None:
        """E12: a page that does not go on, or holds entries of other buckets, is the connection's end."""
        new = GENERATIONS[2]
        place = part_of(token(2).token_id)
        foreign = page(new, 100)
        foreign.tokens.append(
            token_to_wire(next(each for each in map(token, range(999)) if part_of(each.token_id) < 9))
        )
        routes_early = page(new, 100, 200)
        routes_early.routes.append(route_to_wire(route(0)))
        beyond = page(new, 100)
        beyond.next_bucket = BUCKETS + 1
        for bad in (page(new, 100, 100), page(new, 100, 50), foreign, routes_early, beyond):
            with self.subTest(bad=bad.next_bucket):
                self.connect()
                self.offer(first(GENERATIONS[1]))
                word = self.offer(first(new, 100))
                self.answer(bad)
                self.failureResultOf(word, MalformedFrame)
                self.assertInForce(1)
        self.connect()
        bad_first = first(new)
        bad_first.next_bucket = place
        self.failureResultOf(self.offer(bad_first), MalformedFrame)
        self.assertEqual(len(self.applied), 1)

    def test_too_many_bytes(self) -> None:
        """E12: pages that go on beyond what there may be of a projection are the connection's end; at the limit not."""
        first_page, second_page = first(GENERATIONS[2], 100), page(GENERATIONS[2], 100)
        whole = first_page.ByteSize() + second_page.ByteSize()
        for limit in (whole - 1, whole):
            self.patch(offers, "PROJECTION_BYTES", limit)
            self.connect()
            word = self.offer(first_page)
            self.answer(second_page)
            if limit < whole:
                self.failureResultOf(word, MalformedFrame)
        self.assertWord(word, APPLIED, 2)

    def test_another_answer(self) -> None:
        """E12: what is no page ends it."""
        word = self.offer(first(GENERATIONS[1], 100))
        self.answer(control_pb2.EdgeReadyResponse(accepted=True))
        self.failureResultOf(word, UnexpectedMessage)
        self.assertIsNone(self.projections.current)

    def test_held_costs_no_page(self) -> None:
        """E12, P8: what is in memory is not asked for, and what its name alone refuses is not either."""
        self.offer(first(GENERATIONS[2]))
        self.assertWord(self.offer(first(GENERATIONS[2], 100)), HELD, 2)
        self.assertWord(self.offer(first(GENERATIONS[1], 100)), REFUSED, 2, "generation_not_higher")
        conflicting = first(GENERATIONS[2], 100, digest=GENERATIONS[3].digest)
        self.assertWord(self.offer(conflicting), REFUSED, 2, "digest_conflict")
        self.assertEqual((self.peer.asked, len(self.applied)), ([], 1))

    def test_restart(self) -> None:
        """E6, P7: what is only on disk has to come whole, and is then held."""
        self.offer(first(GENERATIONS[2]))
        self.start()
        word = self.offer(first(GENERATIONS[2], 100))
        self.assertIsNone(self.projections.current)
        self.answer(page(GENERATIONS[2], 100))
        self.assertWord(word, HELD, 2)
        self.assertInForce(2)

    def test_digest_of_pages(self) -> None:
        """E5, P8: pages that do not add up to the digest are refused, and the old projection stays in force."""
        self.offer(first(GENERATIONS[1]))
        word = self.offer(first(GENERATIONS[2], 256))
        self.answer(page(GENERATIONS[3], 256))
        self.assertWord(word, REFUSED, 1, "digest_mismatch")
        self.assertInForce(1)

    def test_not_kept(self) -> None:
        """E12: a generation that is not kept is given up for the newer one, whose word is also the word on it."""
        self.offer(first(GENERATIONS[1]))
        word = self.offer(first(GENERATIONS[2], 100))
        self.answer(NOT_KEPT)
        self.assertWord(self.offer(delta(GENERATIONS[2], GENERATIONS[3])), REFUSED, 1, "base_mismatch")
        self.assertNoResult(word)
        self.assertInForce(1)
        words: Deferred[int] = Deferred()
        self.words.append(words)
        newer = self.offer(first(GENERATIONS[3]))
        self.assertInForce(3)
        self.assertNoResult(word)
        self.unanswered = 2
        words.callback(2)
        for each in (word, newer):
            outcome = self.successResultOf(each)
            self.assertEqual((outcome.result, outcome.generation, outcome.unconfirmed), (APPLIED, 3, 2))

    def test_nothing_newer(self) -> None:
        """E12: the newer one is not waited for for ever, and neither is a page."""
        word = self.offer(first(GENERATIONS[1], 100))
        self.answer(NOT_KEPT)
        self.clock.advance(TAKE_SECONDS)
        self.failureResultOf(word, RequestTimedOut)
        late = self.offer(first(GENERATIONS[1], 100))
        self.answer(RequestTimedOut("late"))
        self.failureResultOf(late, RequestTimedOut)
        self.assertIsNone(self.projections.current)

    def test_not_written(self) -> None:
        """E6, P7: when the record cannot be written nothing is acknowledged, nor is what came after it taken."""
        self.offer(first(GENERATIONS[1]))
        word = self.offer(first(GENERATIONS[2], 100))
        next_word = self.offer(first(GENERATIONS[3]))
        rmtree(self.directory)
        self.answer(page(GENERATIONS[2], 100))
        self.failureResultOf(word, FileRefused)
        self.failureResultOf(next_word, PeerDisconnected)
        self.assertInForce(1)


class DeltaTests(OffersCase):
    """What changed."""

    def test_applied(self) -> None:
        """E11: a delta from the projection in force is applied, an empty one too, and survives like a whole one."""
        self.offer(first(GENERATIONS[1]))
        self.assertWord(self.offer(delta(GENERATIONS[1], GENERATIONS[2])), APPLIED, 2)
        self.assertInForce(2)
        same = GENERATIONS[2].at(3)
        self.assertWord(self.offer(delta(GENERATIONS[2], same)), APPLIED, 3)
        self.assertEqual(self.projections.generation, 3)
        self.assertWord(self.offer(delta(GENERATIONS[2], same)), HELD, 3)

    def test_refused(self) -> None:
        """E11, P8: one that does not fit, or leads to something else, changes nothing."""
        self.assertWord(self.offer(delta(GENERATIONS[1], GENERATIONS[2])), REFUSED, 0, "base_mismatch")
        self.offer(first(GENERATIONS[2]))
        gone = delta_to_wire(ProjectionDelta(2, 4, ("token-99",), (), (), ()), GENERATIONS[4].digest)
        other = delta(GENERATIONS[2], GENERATIONS[4])
        other.digest = GENERATIONS[5].digest
        for bad, code in (
            (delta(GENERATIONS[3], GENERATIONS[4]), "base_mismatch"),
            (delta(GENERATIONS[1], GENERATIONS[4]), "base_mismatch"),
            (delta(GENERATIONS[1], GENERATIONS[2]), ""),
            (gone, "malformed_projection"),
            (other, "digest_mismatch"),
        ):
            self.assertWord(self.offer(bad), REFUSED if code else HELD, 2, code)
            self.assertInForce(2)
        self.assertEqual(len(self.applied), 1)

    def test_restart(self) -> None:
        """E11, P7: a restarted Edge has nothing that a delta could start from."""
        self.offer(first(GENERATIONS[1]))
        self.start()
        self.assertWord(self.offer(delta(GENERATIONS[1], GENERATIONS[2])), REFUSED, 1, "base_mismatch")
        self.assertIsNone(self.projections.current)

    def test_malformed(self) -> None:
        """A delta that is not even well-formed is the connection's end."""
        self.offer(first(GENERATIONS[1]))
        bad = delta(GENERATIONS[1], GENERATIONS[2])
        bad.removed_tokens.append("")
        self.failureResultOf(self.offer(bad), MalformedFrame)
        self.assertInForce(1)


class OrderTests(OffersCase):
    """One after the other, and their words too."""

    def test_in_order(self) -> None:
        """E13: deltas wait for the whole projection before them; a ninth that waits is a violation."""
        words = [self.offer(first(GENERATIONS[1], 100))]
        for number in (1, 2, 3):
            words.append(self.offer(delta(GENERATIONS[number], GENERATIONS[number + 1])))
        while len(words) < 1 + WAITING_LIMIT:
            words.append(self.offer(first(GENERATIONS[4])))
        self.assertRaises(TooManyInFlight, self.offer, first(GENERATIONS[5]))
        self.assertTrue(issubclass(TooManyInFlight, ProtocolViolation))
        for word in words:
            self.assertNoResult(word)
        self.answer(page(GENERATIONS[1], 100))
        for number, word in enumerate(words, 1):
            self.assertWord(word, APPLIED if number <= 4 else HELD, min(number, 4))

    def test_words_in_order(self) -> None:
        """E15, P41: no acknowledgement overtakes what an earlier one waits for, and nothing is applied later for it."""
        earlier, later = Deferred[int](), Deferred[int]()
        self.words += [earlier, later]
        words: list[Outcome] = []
        for change in (
            first(GENERATIONS[1]),
            delta(GENERATIONS[1], GENERATIONS[2]),
            first(GENERATIONS[2]),
            delta(GENERATIONS[2], GENERATIONS[3]),
        ):
            self.offer(change).addCallback(words.append)
        self.assertInForce(3)
        later.callback(1)
        self.assertEqual(words, [])
        # not even on another connection
        self.connect()
        again = self.offer(first(GENERATIONS[3]))
        self.assertNoResult(again)
        self.unanswered = 1
        earlier.callback(4)
        told = [(word.result, word.generation, word.digest, word.unconfirmed) for word in words]
        expected = [(APPLIED, 1, 4), (APPLIED, 2, 1), (HELD, 2, 1), (APPLIED, 3, 0)]
        self.assertEqual(told, [(result, each, GENERATIONS[each].digest, left) for result, each, left in expected])
        self.assertWord(again, HELD, 3)

    def test_refusals_do_not_wait(self) -> None:
        """E7: what is refused is answered at once, since it acknowledges nothing."""
        self.words.append(Deferred())
        word = self.offer(first(GENERATIONS[2]))
        self.assertWord(self.offer(first(GENERATIONS[1])), REFUSED, 2, "generation_not_higher")
        self.assertNoResult(word)

    def test_end(self) -> None:
        """E12: a connection that ends leaves everything as it was, whatever was on its way."""
        self.offer(first(GENERATIONS[1]))
        for pages in (False, True):
            self.connect()
            word = self.offers.take(change := first(GENERATIONS[2], 100 if pages else BUCKETS), receipt_of(change))
            if pages:
                self.clock.advance(0)
            waiting = self.offers.take(change := first(GENERATIONS[3]), receipt_of(change))
            self.offers.end()
            for _, answer in self.peer.asked:
                answer.errback(PeerDisconnected("gone"))
            self.clock.advance(0)
            for each in (word, waiting):
                self.failureResultOf(each, PeerDisconnected)
            self.assertInForce(1)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])


class SliceTests(SynchronousTestCase):
    def test_others_have_their_turn(self) -> None:
        """E11, E13: what is large is taken apart in slices, changes too; meanwhile the old one serves."""

        class Busy(EventLoop):
            """Every look at the clock comes a millisecond later, and is counted."""

            looks = 0

            def boot(self) -> float:
                self.looks += 1
                return self.looks / 1000

        loop = Busy()
        projections = Projections(Path(self.mktemp()), DEPLOYMENT, EDGE, loop, lambda _: succeed(0), lambda: 0)
        projections.load()
        offers = Offers(projections, RecordedPeer(identity(Role.CONTROL_PLANE, CONTROL_PLANE)), loop)
        changes: list[Change] = [first(generation(1, 1)), first(large := generation(2, 3000))]
        changes += [delta(large, grown := generation(3, 6000)), delta(grown, generation(4, 1))]
        for change in changes:
            before = projections.current
            word = offers.take(change, receipt_of(change))
            turns = 0
            while not word.called:
                self.assertIs(projections.current, before)
                looks, turns = loop.looks, turns + 1
                loop.turn()
                self.assertLessEqual(loop.looks - looks, SLICE_SECONDS * 1000 + 2)
            self.assertEqual(self.successResultOf(word).result, APPLIED)
            self.assertEqual(projections.generation, change.generation)
            self.assertGreater(turns, 40 if change.generation > 1 else 0)


class ResyncTests(OffersCase):
    """`projection.resync`."""

    def setUp(self) -> None:
        super().setUp()
        self.offer(first(GENERATIONS[2]))

    def resync(self) -> Deferred[None]:
        done = Deferred.fromCoroutine(self.offers.resync())
        self.clock.advance(0)
        return done

    def test_again(self) -> None:
        """E12: every bucket is asked for again, from the first, and what comes takes the place of what was there."""
        before, done = self.projections.current, self.resync()
        self.assertEqual(self.answer(page(GENERATIONS[2], 0, 300)).bucket, 0)
        self.assertIs(self.projections.current, before)
        self.assertEqual(self.answer(page(GENERATIONS[2], 300)).bucket, 300)
        self.successResultOf(done)
        self.assertIsNot(self.projections.current, before)
        self.assertInForce(2)

    def test_another_one(self) -> None:
        """E5, P8: another content of the same generation is refused, and the old one stays."""
        done = self.resync()
        self.answer(page(GENERATIONS[3], 0))
        self.assertEqual(self.failureResultOf(done, ProjectionRefused).value.reason, "digest_conflict")
        self.assertInForce(2)

    def test_not_kept(self) -> None:
        """E12: one that is not kept is tried once more as the newer one that follows, and not for ever."""
        done = self.resync()
        self.answer(NOT_KEPT)
        self.offer(delta(GENERATIONS[2], GENERATIONS[3]))
        self.assertEqual(self.answer(page(GENERATIONS[3], 0)).generation, 3)
        self.successResultOf(done)
        self.assertInForce(3)
        done = self.resync()
        self.answer(NOT_KEPT)
        self.offer(delta(GENERATIONS[3], GENERATIONS[4]))
        self.answer(NOT_KEPT)
        self.failureResultOf(done, ProjectionSuperseded)

    def test_offers_wait(self) -> None:
        """E13: what is offered meanwhile comes after it."""
        done = self.resync()
        word = self.offer(delta(GENERATIONS[2], GENERATIONS[3]))
        self.assertNoResult(word)
        self.answer(page(GENERATIONS[2], 0))
        self.successResultOf(done)
        self.assertWord(word, APPLIED, 3)


numbers = st.integers(1, len(GENERATIONS))
steps = st.one_of(
    st.tuples(st.just("whole"), numbers, st.integers(1, BUCKETS), st.booleans()),
    st.tuples(st.just("delta"), numbers, numbers, st.booleans()),
    st.tuples(st.just("page"), st.just(0), st.integers(1, BUCKETS), st.just(True)),
    st.tuples(st.sampled_from(["turn", "words", "not kept", "end", "restart"]), st.just(0), st.just(0), st.just(True)),
)


class SequenceTests(OffersCase):
    """Any offers in any order, over connections and processes that end at any moment."""

    @given(st.lists(steps, max_size=30))
    def test_never_mixed_and_never_back(self, script: Sequence[tuple[str, int, int, bool]]) -> None:
        """P7, P8, P40, P41: exactly one of the offered projections is in force, generations never fall."""
        rmtree(self.directory, ignore_errors=True)
        self.start()
        held, acknowledged = 0, list[Outcome]()
        for what, number, place, good in script:
            self.do(what, number, place, good, acknowledged)
            hello = self.projections.hello(1)
            self.assertGreaterEqual(hello.held_generation, held)
            held = hello.held_generation
            if self.projections.current is not None:
                self.assertInForce(held)
            if held:
                self.assertEqual(hello.held_digest, GENERATIONS[held].digest)
            passed = [each.generation for each in acknowledged if each.result != REFUSED]
            self.assertEqual(passed, sorted(passed))
        self.finish()
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def do(self, what: str, number: int, place: int, good: bool, acknowledged: list[Outcome]) -> None:
        change: Change
        match what:
            case "whole" | "delta":
                new = GENERATIONS[number if what == "whole" else place]
                change = first(new, place) if what == "whole" else delta(GENERATIONS[number], new)
                if not good:
                    change.digest = bytes(32)
                self.words.append(Deferred())
                with contextlib.suppress(TooManyInFlight):
                    word = self.offers.take(change, receipt_of(change))
                    word.addCallbacks(
                        acknowledged.append, lambda failure: self.assertIsInstance(failure.value, IopError)
                    )
            case "page":
                self.pages(lambda asked: page(GENERATIONS[asked.generation], asked.bucket, max(place, asked.bucket)))
            case "not kept":
                self.pages(lambda _: NOT_KEPT)
            case "turn":
                self.clock.advance(0)
            case "words":
                self.say()
            case "end":
                self.offers.end()
                self.pages(lambda _: None)
                self.connect()
            case "restart":
                self.finish()
                acknowledged.clear()
                self.start()

    def say(self) -> None:
        """Every Node gives its word."""
        words, self.words = self.words, []
        for each in words:
            each.callback(0)

    def finish(self) -> None:
        """The connection ends, and whoever still waits has waited long enough."""
        self.offers.end()
        self.pages(lambda _: None)
        self.say()
        self.clock.advance(TAKE_SECONDS)

    def pages(self, of: Callable[[control_pb2.ProjectionPageRequest], Message | None]) -> None:
        """Answer what was asked for; None when the connection ended."""
        asked, self.peer.asked = self.peer.asked, []
        for message, answer in asked:
            assert isinstance(message, control_pb2.ProjectionPageRequest)
            with_page = of(message)
            if with_page is None:
                answer.errback(PeerDisconnected("gone"))
            else:
                answer.callback(with_page)
