"""The one comparison that decides a lease: an Edge's claim against what the store has just read (C19, C20, C41, L3).

Both stores read in their own way and decide here, so neither can forget a field.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iop.records import LeaseRefusal, SlotState, TokenKind

if TYPE_CHECKING:
    from iop.records import LeaseQuestion


@dataclass(frozen=True, slots=True)
class DurableToken:
    """A token's row, as far as a lease depends on it."""

    principal: str
    kind: TokenKind
    expires_ms: int
    proof: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DurableSlot:
    """A slot's row, as far as a lease depends on it."""

    principal: str
    profile: str
    target: str
    state: SlotState
    credential_revision: int


@dataclass(frozen=True, slots=True)
class DurableRoute:
    """A route's row, as far as a lease depends on it."""

    principal: str
    slot: str
    revision: int


@dataclass(frozen=True, slots=True)
class DurableRows:
    """One consistent reading of every row a lease depends on; None where there is no row of that id.

    :ivar edge_allowed: whether the principal is limited to no Edge, or to several of which the asking one is one.
    """

    generation: int
    principal_exists: bool
    token: DurableToken | None
    slot: DurableSlot | None
    route: DurableRoute | None
    node_denied: bool
    edge_denied: bool
    edge_allowed: bool


def refusal(question: LeaseQuestion, rows: DurableRows, now_ms: int) -> LeaseRefusal | None:
    """Why ``question`` gets no lease under ``rows``, or None if everything in it holds (P12).

    A stale generation comes first, since a newer projection may change every other answer. One ahead of the store is
    nothing that waiting could heal. A row of somebody else and no row at all are told alike (P16).

    :param now_ms: the present, Unix milliseconds; a token is refused from its expiry on.
    """
    binding = question.binding

    def refused(reason: str, message: str, *, again: bool = False) -> LeaseRefusal:
        return LeaseRefusal(reason, message, again, rows.generation)

    if binding.generation < rows.generation:
        return refused("stale_generation", "the projection is older than the store", again=True)
    if binding.generation > rows.generation:
        return refused("binding_mismatch", "the store has not reached the binding's generation")
    if rows.edge_denied:
        return refused("edge_denied", "this Edge is denied")
    if rows.node_denied:
        return refused("node_denied", "the Node is denied")
    if not rows.principal_exists:
        return refused("binding_mismatch", "the principal does not exist")
    if not _token_holds(question, rows.token, now_ms):
        return refused("token_refused", "the token does not open this")
    # after the token, so that only who has one learns of the limit
    if not rows.edge_allowed:
        return refused("edge_not_allowed", "the principal is limited to other Edges")
    slot = rows.slot
    if slot is None or slot.principal != binding.principal or slot.state is not SlotState.ACTIVE:
        return refused("slot_refused", "the principal has no such active slot")
    bound = (binding.profile, binding.target, binding.credential_revision)
    if bound != (slot.profile, slot.target, slot.credential_revision):
        return refused("binding_mismatch", "the binding is not what the slot holds")
    durable = DurableRoute(binding.principal, binding.slot, binding.route_revision)
    if rows.route != durable:
        return refused("binding_mismatch", "the binding is not what the route holds")
    return None


def _token_holds(question: LeaseQuestion, token: DurableToken | None, now_ms: int) -> bool:
    return (
        token is not None
        and hmac.compare_digest(token.proof, question.token_proof)
        and token.principal == question.binding.principal
        and token.kind is TokenKind.USE
        and (token.expires_ms == 0 or now_ms < token.expires_ms)
    )
