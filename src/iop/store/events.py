"""What the audit says about each thing a store does: ids and outcomes, never a secret, token, digest or proof (P26)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iop.records import LeaseQuestion, NewToken, PrincipalRecord, RouteRecord, SlotRecord


@dataclass(frozen=True, slots=True)
class Event:
    """An audit row before the store gives it a sequence and a time.

    :ivar touches: the principal of whom Edges may have to know something else than before; empty if there is none.
    """

    actor: str
    action: str
    subject: str
    outcome: str
    details: Mapping[str, str | int]
    touches: str


def principal_created(made: PrincipalRecord, tokens: Sequence[NewToken], actor: str) -> Event:
    """A principal and the tokens born with it, whose ids stand under their kinds, numbered, and its Edges."""
    born = {f"{token.kind.value}_token_{number}": token.token_id for number, token in enumerate(tokens, 1)}
    return Event(actor, "principal.create", made.principal, "done", born | _edges(made), made.principal)


def principal_limited(made: PrincipalRecord, actor: str) -> Event:
    """A principal, limited to the Edges that are named; to none of them if every Edge may know of it."""
    return Event(actor, "principal.limit", made.principal, "done", _edges(made), made.principal)


def _edges(made: PrincipalRecord) -> dict[str, str]:
    return {f"edge_{number}": edge for number, edge in enumerate(sorted(made.edges), 1)}


def slot_created(made: SlotRecord, actor: str) -> Event:
    """A slot with its first secret."""
    where: dict[str, str | int] = {"principal": made.principal, "profile": made.profile, "target": made.target}
    return Event(actor, "slot.create", made.slot, "done", where, made.principal)


def slot_changed(made: SlotRecord, change: str, actor: str) -> Event:
    """A slot, enabled, disabled, revoked or rotated."""
    details: dict[str, str | int] = {
        "principal": made.principal,
        "revision": made.revision,
        "credential_revision": made.credential_revision,
    }
    return Event(actor, f"slot.{change}", made.slot, "done", details, made.principal)


def route_put(made: RouteRecord, actor: str) -> Event:
    """A route, made or changed; its model's name is the principal's and stays out."""
    details: dict[str, str | int] = {"principal": made.principal, "slot": made.slot, "revision": made.revision}
    return Event(actor, "route.put", made.route, "done", details, made.principal)


def denied(kind: str, name: str, actor: str) -> Event:
    """A Node's or Edge's name, denied."""
    return Event(actor, f"{kind}.deny", name, "done", {}, "")


def allowed(kind: str, name: str, actor: str) -> Event:
    """A denial, lifted."""
    return Event(actor, f"{kind}.allow", name, "done", {}, "")


def lease_decided(question: LeaseQuestion, outcome: str) -> Event:
    """What an Edge asked, and what came of it: ``granted`` or why not. All but the Edge's name is as it claimed."""
    details: dict[str, str | int] = {
        "request": question.request_id,
        "token": question.token_id,
        **asdict(question.binding),
    }
    return Event(f"edge:{question.edge}", "lease.issue", question.binding.slot, outcome, details, "")
