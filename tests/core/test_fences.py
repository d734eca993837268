"""Resolving, binding, and what both Edge fences compare."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from iop.core.fences import Pinned, authenticate, bind, fence, resolve
from iop.core.projection import Projection
from iop.errors import FenceRefused, NoSuchModel, TokenRefused
from iop.records import BINDING_FIELDS, Binding, RouteEntry
from tests.core.entries import ADA, ADA_SMALL, BOB, BOB_LARGE, changed, projection

NOW_MS = 1_800_000_000_000


def pinned(current: Projection | None = None) -> Pinned:
    """What Ada's request for ``small`` resolves to."""
    return resolve(current or projection(), ADA.digest, "small", NOW_MS)


def refused_fields(
    binding: Binding, current: Projection, *, token_id: str = ADA.token_id, node: str = "n1"
) -> set[str]:
    """The fields a fence finds to differ; empty when it lets the request pass."""
    try:
        fence(binding, token_id, node, pinned(), current, NOW_MS)
    except FenceRefused as refused:
        return set(refused.fields)
    return set()


class ResolveTests(SynchronousTestCase):
    """Tokens and models in one projection."""

    def test_resolves(self) -> None:
        """All of it comes from the one projection."""
        current = projection()
        self.assertEqual(pinned(current), Pinned(current, ADA, ADA_SMALL))

    def test_unknown_token(self) -> None:
        """P20: only the digest of a projected token opens anything."""
        for digest in (b"", b"\0" * 32, ADA.digest[:-1], ADA.digest + b"\0"):
            self.assertRaises(TokenRefused, resolve, projection(), digest, "small", NOW_MS)

    def test_expiry(self) -> None:
        """A token ends at its very millisecond."""
        current = projection(tokens=(replace(ADA, expires_ms=NOW_MS),))
        self.assertEqual(authenticate(current, ADA.digest, NOW_MS - 1).token_id, "token-ada")
        self.assertRaises(TokenRefused, authenticate, current, ADA.digest, NOW_MS)

    def test_foreign_and_unknown_models_are_one(self) -> None:
        """P16: another principal's model is refused exactly as one that does not exist."""
        foreign = self.assertRaises(NoSuchModel, resolve, projection(), ADA.digest, "large", NOW_MS)
        unknown = self.assertRaises(NoSuchModel, resolve, projection(), ADA.digest, "nothing", NOW_MS)
        self.assertEqual((foreign.message, foreign.hint), (unknown.message, unknown.hint))


class FenceTests(SynchronousTestCase):
    """P12 at both Edge fences, which are one function: one row per field."""

    def setUp(self) -> None:
        self.binding = bind(ADA_SMALL, "n1", 7)

    def test_binding(self) -> None:
        """C17: the nine fields."""
        self.assertEqual(self.binding, Binding("ada", "route-1", "slot-1", "openai", "openai", "n1", 1, 1, 7))

    def test_unchanged_passes(self) -> None:
        """What was authorised passes, and an unrelated newer generation does not stop it."""
        self.assertEqual(refused_fields(self.binding, projection()), set())
        unrelated = projection(9, (ADA,), (ADA_SMALL, replace(BOB_LARGE, route_revision=6)))
        self.assertEqual(refused_fields(self.binding, unrelated), set())

    def test_each_field_of_the_binding(self) -> None:
        """P12: a binding that differs from the pinned projection in any one field is refused for that field."""
        for name in BINDING_FIELDS:
            self.assertEqual(refused_fields(changed(self.binding, name), projection()), {name}, name)

    def test_another_existing_route(self) -> None:
        """P12: neither another's route nor another own route stands in for the one that was resolved."""
        own = replace(ADA_SMALL, route="route-3", model="tiny")
        current = projection(routes=(ADA_SMALL, BOB_LARGE, own))
        for name in ("route-2", "route-3"):
            self.assertEqual(refused_fields(replace(self.binding, route=name), current), {"route"})

    def test_token(self) -> None:
        """P12: another token, even one that exists, is refused."""
        self.assertEqual(refused_fields(self.binding, projection(), token_id=BOB.token_id), {"token"})
        self.assertEqual(refused_fields(self.binding, projection(), token_id="nothing"), {"token"})

    def test_node(self) -> None:
        """P12: the binding names the Node that was admitted."""
        self.assertEqual(refused_fields(self.binding, projection(), node="n2"), {"node"})

    def test_each_field_of_the_route_in_the_current_projection(self) -> None:
        """P12: an entry that changed since it was pinned refuses the request, whatever changed in it."""
        for name in RouteEntry.__slots__:
            found = refused_fields(self.binding, projection(8, routes=(changed(ADA_SMALL, name),)))
            self.assertEqual(found, {name}, name)

    def test_gone(self) -> None:
        """P12: a token or route that is gone refuses the request."""
        self.assertEqual(refused_fields(self.binding, projection(8, (BOB,))), {"token"})
        self.assertEqual(refused_fields(self.binding, projection(8, routes=())), {"route"})

    def test_token_changed(self) -> None:
        """P12: a token that was replaced under its id, or given to another principal, refuses the request."""
        for token in (replace(ADA, digest=bytes(32)), replace(ADA, principal="eve"), replace(ADA, expires_ms=9)):
            self.assertEqual(refused_fields(self.binding, projection(8, (token,))), {"token"})

    def test_expired_in_between(self) -> None:
        """A token that expires after it was pinned refuses the request."""
        current = projection(tokens=(replace(ADA, expires_ms=NOW_MS + 1),))
        held = pinned(current)
        fence(self.binding, ADA.token_id, "n1", held, current, NOW_MS)
        refused = self.assertRaises(FenceRefused, fence, self.binding, ADA.token_id, "n1", held, current, NOW_MS + 1)
        self.assertEqual(refused.fields, ("token",))

    def test_older_current(self) -> None:
        """P12: nothing passes under a projection older than the pinned one."""
        self.assertEqual(refused_fields(self.binding, projection(6)), {"generation"})
