from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from iop.core.durable import DurableRoute, DurableRows, DurableSlot, DurableToken, refusal
from iop.records import BINDING_FIELDS, Binding, LeaseQuestion, SlotState, TokenKind

NOW_MS = 1_000_000
PROOF = b"p" * 32
TOKEN = DurableToken("principal", TokenKind.USE, 0, PROOF)
SLOT = DurableSlot("principal", "openai", "lab", SlotState.ACTIVE, 3)
ROUTE = DurableRoute("principal", "slot", 4)
ROWS = DurableRows(9, True, TOKEN, SLOT, ROUTE, node_denied=False, edge_denied=False, edge_allowed=True)
BINDING = Binding("principal", "route", "slot", "openai", "lab", "node", 3, 4, 9)
QUESTION = LeaseQuestion("request", "edge", BINDING, "token", PROOF)

#: What is bound, the rows as they then are, and the code of the refusal. P12 at the Control Plane.
DRIFTED: dict[str, tuple[DurableRows, str]] = {
    "principal": (replace(ROWS, principal_exists=False), "binding_mismatch"),
    "token": (replace(ROWS, token=None), "token_refused"),
    "token's principal": (replace(ROWS, token=replace(TOKEN, principal="other")), "token_refused"),
    "token's kind": (replace(ROWS, token=replace(TOKEN, kind=TokenKind.MANAGE)), "token_refused"),
    "token's expiry": (replace(ROWS, token=replace(TOKEN, expires_ms=NOW_MS)), "token_refused"),
    "token's proof": (replace(ROWS, token=replace(TOKEN, proof=b"q" * 32)), "token_refused"),
    "slot": (replace(ROWS, slot=None), "slot_refused"),
    "slot's principal": (replace(ROWS, slot=replace(SLOT, principal="other")), "slot_refused"),
    "slot disabled": (replace(ROWS, slot=replace(SLOT, state=SlotState.DISABLED)), "slot_refused"),
    "slot revoked": (replace(ROWS, slot=replace(SLOT, state=SlotState.REVOKED)), "slot_refused"),
    "profile": (replace(ROWS, slot=replace(SLOT, profile="none")), "binding_mismatch"),
    "target": (replace(ROWS, slot=replace(SLOT, target="elsewhere")), "binding_mismatch"),
    "credential revision": (replace(ROWS, slot=replace(SLOT, credential_revision=4)), "binding_mismatch"),
    "route": (replace(ROWS, route=None), "binding_mismatch"),
    "route's principal": (replace(ROWS, route=replace(ROUTE, principal="other")), "binding_mismatch"),
    "route's slot": (replace(ROWS, route=replace(ROUTE, slot="another")), "binding_mismatch"),
    "route revision": (replace(ROWS, route=replace(ROUTE, revision=5)), "binding_mismatch"),
    "node": (replace(ROWS, node_denied=True), "node_denied"),
    "edge": (replace(ROWS, edge_denied=True), "edge_denied"),
    "edge of the principal": (replace(ROWS, edge_allowed=False), "edge_not_allowed"),
    "generation moved on": (replace(ROWS, generation=10), "stale_generation"),
    "generation ahead": (replace(ROWS, generation=8), "binding_mismatch"),
}


class RefusalTests(SynchronousTestCase):
    """The durable half of a lease, field by field (C19, C20, C41, L3, L4)."""

    def test_everything_holds(self) -> None:
        assert refusal(QUESTION, ROWS, NOW_MS) is None

    def test_each_row_that_drifted_refuses(self) -> None:
        """P12: one row per field; only a stale generation may be asked again."""
        for what, (rows, reason) in DRIFTED.items():
            refused = refusal(QUESTION, rows, NOW_MS)
            assert refused is not None, what
            assert (what, refused.reason) == (what, reason)
            assert refused.generation == rows.generation
            assert (what, refused.again) == (what, reason == "stale_generation")

    def test_each_field_of_the_claim_is_compared(self) -> None:
        """P12: a binding with any one field changed is refused; the names a row is found by change the row found."""
        found_by = {"route": replace(ROWS, route=None), "node": replace(ROWS, node_denied=True)}
        for name in BINDING_FIELDS:
            value = getattr(BINDING, name)
            other: dict[str, Any] = {name: value + 1 if isinstance(value, int) else "other"}
            changed = replace(QUESTION, binding=replace(BINDING, **other))
            assert refusal(changed, found_by.get(name, ROWS), NOW_MS) is not None, name

    def test_claimed_proof_is_compared(self) -> None:
        """P12, P20: a token id without the proof that its token was seen is worth nothing."""
        for proof in (b"", b"p" * 31, b"q" * 32, b"p" * 33):
            refused = refusal(replace(QUESTION, token_proof=proof), ROWS, NOW_MS)
            assert refused is not None
            assert refused.reason == "token_refused"

    def test_token_expires_at_its_moment_and_not_before(self) -> None:
        rows = replace(ROWS, token=replace(TOKEN, expires_ms=NOW_MS + 1))
        assert refusal(QUESTION, rows, NOW_MS) is None
        assert refusal(QUESTION, rows, NOW_MS + 1) is not None

    def test_stale_generation_comes_before_everything(self) -> None:
        """L4: under another generation every other answer may differ."""
        nothing = DurableRows(10, False, None, None, None, True, True, False)
        refused = refusal(QUESTION, nothing, NOW_MS)
        assert refused is not None
        assert (refused.reason, refused.again, refused.generation) == ("stale_generation", True, 10)

    def test_foreign_and_unknown_are_told_alike(self) -> None:
        """P16."""
        for foreign, unknown in (
            (replace(ROWS, slot=replace(SLOT, principal="other")), replace(ROWS, slot=None)),
            (replace(ROWS, route=replace(ROUTE, principal="other")), replace(ROWS, route=None)),
            (replace(ROWS, token=replace(TOKEN, principal="other")), replace(ROWS, token=None)),
        ):
            assert refusal(QUESTION, foreign, NOW_MS) == refusal(QUESTION, unknown, NOW_MS)

    def test_limit_is_told_to_no_one_without_the_token(self) -> None:
        """P16, E14: who has no token of a principal hears nothing of the Edges it is limited to."""
        limited = replace(ROWS, edge_allowed=False)
        for token in (None, replace(TOKEN, principal="other"), replace(TOKEN, proof=b"q" * 32)):
            told = refusal(QUESTION, replace(limited, token=token), NOW_MS)
            assert told is not None
            assert told == refusal(QUESTION, replace(ROWS, token=token), NOW_MS)
