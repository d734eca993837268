"""The projection value and its digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from random import Random

from hypothesis import given, reject
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.projection import BUCKETS, Draft, Projection, projection_digest
from iop.errors import ProjectionRefused
from iop.records import ProjectionDelta, ProjectionSnapshot, RouteEntry, TokenEntry
from tests.core.entries import ADA, ADA_SMALL, BOB, BOB_LARGE, changed, projection

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 2**63 - 2)
tokens = st.builds(TokenEntry, texts, texts, st.binary(min_size=32, max_size=32), numbers)
routes = st.builds(RouteEntry, texts, texts, texts, texts, texts, texts, texts, texts, numbers, numbers)
token_lists = st.lists(tokens, max_size=6, unique_by=(lambda entry: entry.token_id, lambda entry: entry.digest))
route_lists = st.lists(
    routes, max_size=6, unique_by=(lambda entry: entry.route, lambda entry: (entry.principal, entry.model))
)


def digest_or_reject(some: Sequence[TokenEntry], more: Sequence[RouteEntry]) -> bytes:
    """The digest of entries that Hypothesis put together, unless two of them claim one key."""
    try:
        return projection_digest(some, more)
    except ProjectionRefused:
        return reject()


class DigestTests(SynchronousTestCase):
    """Rule E9."""

    @given(token_lists, route_lists, st.randoms(use_true_random=False))
    def test_order(self, some: list[TokenEntry], more: list[RouteEntry], random: Random) -> None:
        """E9: a digest names content, not the order it came in."""
        before = projection_digest(some, more)
        random.shuffle(some)
        random.shuffle(more)
        self.assertEqual(projection_digest(some, more), before)

    @given(tokens, token_lists, route_lists, st.sampled_from(TokenEntry.__slots__))
    def test_token_field(self, one: TokenEntry, some: list[TokenEntry], more: list[RouteEntry], name: str) -> None:
        """E9: another value in any field of any token is another digest."""
        another = changed(one, name)
        self.assertNotEqual(digest_or_reject([one, *some], more), digest_or_reject([another, *some], more))

    @given(routes, token_lists, route_lists, st.sampled_from(RouteEntry.__slots__))
    def test_route_field(self, one: RouteEntry, some: list[TokenEntry], more: list[RouteEntry], name: str) -> None:
        """E9: another value in any field of any route is another digest."""
        another = changed(one, name)
        self.assertNotEqual(digest_or_reject(some, [one, *more]), digest_or_reject(some, [another, *more]))

    @given(tokens, token_lists, route_lists)
    def test_one_more(self, one: TokenEntry, some: list[TokenEntry], more: list[RouteEntry]) -> None:
        """E9: an entry more is another digest."""
        self.assertNotEqual(digest_or_reject([one, *some], more), digest_or_reject(some, more))

    def test_fields_do_not_run_together(self) -> None:
        """E9: lengths stand before fields, so moving a character between neighbours shows."""
        moved = replace(ADA_SMALL, slot=ADA_SMALL.slot + "o", profile=ADA_SMALL.profile[1:])
        self.assertNotEqual(projection_digest([], [ADA_SMALL]), projection_digest([], [moved]))

    def test_construction(self) -> None:
        """E9, written out once more by hand for one token and nothing else."""

        def prefixed(data: bytes) -> bytes:
            return len(data).to_bytes(4, "big") + data

        entry = b"".join(map(prefixed, (b"token-ada", b"ada", sha256(b"ada").digest(), bytes(8))))
        buckets = [sha256(b"").digest()] * 512
        buckets[sha256(b"token-ada").digest()[0]] = sha256(entry).digest()
        expected = sha256(b"iop/projection-digest/v1\0" + b"".join(buckets)).digest()
        self.assertEqual(projection_digest([ADA], []), expected)


class ProjectionTests(SynchronousTestCase):
    """Look-ups, and what is refused."""

    def test_lookups(self) -> None:
        """P16: a principal finds its own routes only; another's are as absent as those that do not exist."""
        current = projection()
        self.assertEqual(current.generation, 7)
        self.assertEqual(current.digest, projection_digest([ADA, BOB], [ADA_SMALL, BOB_LARGE]))
        self.assertIs(current.token(ADA.digest), ADA)
        self.assertIs(current.token_by_id("token-bob"), BOB)
        self.assertIs(current.route("ada", "small"), ADA_SMALL)
        self.assertIs(current.route_by_id("route-2"), BOB_LARGE)
        self.assertIsNone(current.route("ada", "large"))
        self.assertIsNone(current.route("nobody", "small"))
        self.assertIsNone(current.token(b"\0" * 32))
        self.assertEqual(current.routes_of("bob"), [BOB_LARGE])
        self.assertEqual(current.routes_of("nobody"), [])

    def test_routes_by_model(self) -> None:
        """Routes are listed by model, whatever order they came in."""
        tiny = replace(ADA_SMALL, route="route-3", model="a-tiny")
        self.assertEqual(projection(routes=(ADA_SMALL, tiny)).routes_of("ada"), [tiny, ADA_SMALL])

    def test_two_entries_for_one_key(self) -> None:
        """A projection in which two entries claim one key has no meaning and is refused as a whole."""
        for entry in (replace(BOB, token_id=ADA.token_id), replace(BOB, digest=ADA.digest)):
            refused = self.assertRaises(ProjectionRefused, projection, 7, (ADA, entry))
            self.assertEqual(refused.reason, "malformed_projection")
        for route in (replace(ADA_SMALL, model="other"), replace(ADA_SMALL, route="route-9")):
            self.assertRaises(ProjectionRefused, projection, 7, (ADA,), (ADA_SMALL, route))

    def test_digests_stay_out_of_repr(self) -> None:
        """P25: a projection that ends up in a log shows no digest."""
        self.assertNotIn(repr(ADA.digest), repr(Projection.build(ProjectionSnapshot(1, (ADA,), ()))))


class ChangeTests(SynchronousTestCase):
    """Deltas: what makes one projection of another."""

    @given(token_lists, route_lists, token_lists, route_lists)
    def test_a_delta_leads_from_any_projection_to_any_other(
        self,
        tokens_before: list[TokenEntry],
        routes_before: list[RouteEntry],
        tokens_after: list[TokenEntry],
        routes_after: list[RouteEntry],
    ) -> None:
        """E11: applied to its base, a delta gives exactly the other: entries, look-ups, digest."""
        base = Projection.build(ProjectionSnapshot(1, tuple(tokens_before), tuple(routes_before)))
        after = Projection.build(ProjectionSnapshot(2, tuple(tokens_after), tuple(routes_after)))
        made = base.changed(after.delta_from(base))
        self.assertEqual((made.generation, made.digest), (2, after.digest))
        self.assertEqual([made.token_by_id(token.token_id) for token in tokens_after], tokens_after)
        self.assertEqual([made.token(token.digest) for token in tokens_after], tokens_after)
        self.assertEqual([made.route(route.principal, route.model) for route in routes_after], routes_after)
        self.assertEqual([base.token(token.digest) for token in tokens_before], tokens_before, "the base is as it was")

    def test_a_delta_holds_only_what_differs(self) -> None:
        """E11: a changed route is the only thing in the delta, and every bucket that it is not in is shared."""
        base = projection()
        changed_route = replace(ADA_SMALL, route_revision=9)
        delta = ProjectionDelta(7, 8, (), (), (), (changed_route,))
        after = base.changed(delta)
        self.assertEqual(after.delta_from(base), delta)
        self.assertEqual(sum(len(list(after.bucket(number)[1])) for number in range(BUCKETS)), 2)
        self.assertEqual((after.at(9).generation, after.at(9).digest), (9, after.digest))

    def test_places_are_swapped_at_once(self) -> None:
        """E11: two routes may take each other's model in one delta."""
        other = replace(ADA_SMALL, route="route-3", model="a-tiny")
        base = projection(routes=(ADA_SMALL, other))
        swapped = (replace(ADA_SMALL, model="a-tiny"), replace(other, model=ADA_SMALL.model))
        self.assertEqual(base.changed(ProjectionDelta(7, 8, (), (), (), swapped)).routes_of("ada"), [*swapped])

    @given(token_lists, route_lists, st.integers(0, 12))
    def test_hashed_step_by_step(self, some: list[TokenEntry], more: list[RouteEntry], steps: int) -> None:
        """E9, E13: a draft that was hashed in steps, wholly, partly or before its last entries, has the same digest."""
        draft = Draft(Projection.empty(0))
        draft.add(some, ())
        for _ in islice(draft.hashing(), steps):
            pass
        draft.add((), more)
        for _ in islice(draft.hashing(), steps):
            pass
        made = draft.finish(3)
        self.assertEqual((made.generation, made.digest), (3, projection_digest(some, more)))
        self.assertEqual([made.token(token.digest) for token in some], some)

    def test_a_delta_that_does_not_fit(self) -> None:
        """E11: what removes something that is not there, or names a thing twice, is refused as a whole."""
        for delta in (
            ProjectionDelta(7, 8, ("token-nobody",), (), (), ()),
            ProjectionDelta(7, 8, (), ("route-none",), (), ()),
            ProjectionDelta(7, 8, (), (), (ADA, ADA), ()),
            ProjectionDelta(7, 8, (), (), (replace(BOB, digest=ADA.digest),), ()),
        ):
            refused = self.assertRaises(ProjectionRefused, projection().changed, delta)
            self.assertEqual(refused.reason, "malformed_projection")
