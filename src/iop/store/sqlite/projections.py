"""What Edges may know, and what a lease depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from iop.core.durable import DurableRoute, DurableRows, DurableSlot, DurableToken, refusal
from iop.interfaces import ILeaseAuthority, IProjections
from iop.records import (
    LeaseGrant,
    Reading,
    RouteEntry,
    SealedSecret,
    SlotState,
    TokenEntry,
    TokenKind,
)
from iop.store.events import lease_decided
from iop.store.readings import views
from iop.store.sqlite.mutation import Writer, current_generation, rows

if TYPE_CHECKING:
    import sqlite3

    from twisted.internet.defer import Deferred

    from iop.records import LeaseQuestion, LeaseRefusal, PrincipalView
    from iop.store.events import Event
    from iop.store.sqlite.thread import SqliteThread

#: Whom a reading is about: everybody, or whoever was touched after a generation.
_EVERYBODY = "SELECT principal FROM principals"
_TOUCHED = "SELECT DISTINCT principal FROM changes WHERE generation > ? AND principal <> ''"
#: What is read of them. The order of the joins is given: who is wanted comes first, and the rest is looked up.
_WANTED = "SELECT principal FROM wanted ORDER BY principal"
_EDGES = "SELECT principal, edge FROM wanted CROSS JOIN principal_edges USING (principal)"
_TOKENS = """
    SELECT token, principal, digest, expires_ms FROM wanted CROSS JOIN tokens USING (principal)
    WHERE kind = 'use'
    ORDER BY token
"""
_ROUTES = """
    SELECT route, principal, slot, profile, target, model, upstream_model, selector, credential_revision,
           routes.revision
    FROM wanted CROSS JOIN routes USING (principal) CROSS JOIN slots USING (principal, slot)
    WHERE state = 'active'
    ORDER BY route
"""
#: Everything a lease depends on, in one row whatever exists; who owns what is compared, not searched for.
_DURABLE = """
    SELECT generation.value, principals.principal IS NOT NULL,
           EXISTS (SELECT 1 FROM denials WHERE kind = 'node' AND name = ?1),
           EXISTS (SELECT 1 FROM denials WHERE kind = 'edge' AND name = ?2),
           NOT EXISTS (SELECT 1 FROM principal_edges WHERE principal = ?3)
               OR EXISTS (SELECT 1 FROM principal_edges WHERE principal = ?3 AND edge = ?2),
           tokens.principal, tokens.kind, tokens.expires_ms, tokens.proof,
           slots.principal, slots.profile, slots.target, slots.state, slots.credential_revision,
           slots.key_id, slots.wrapped_key, slots.box,
           routes.principal, routes.slot, routes.revision
    FROM generation
    LEFT JOIN principals ON principals.principal = ?3
    LEFT JOIN tokens ON tokens.token = ?4
    LEFT JOIN slots ON slots.slot = ?5
    LEFT JOIN routes ON routes.route = ?6
"""


@implementer(IProjections)
class SqliteProjections:
    """See :class:`~iop.interfaces.IProjections`."""

    def __init__(self, reader: SqliteThread) -> None:
        self._reader = reader

    def generation(self) -> Deferred[int]:
        return self._reader.run(current_generation)

    def reading(self, since: int) -> Deferred[Reading]:
        def job(connection: sqlite3.Connection) -> Reading:
            generation = current_generation(connection)
            if _knows_what_changed(connection, since, generation):
                return Reading(generation, False, _views(connection, _TOUCHED, since))
            return Reading(generation, True, _views(connection, _EVERYBODY))

        return self._reader.run(job)


def _knows_what_changed(connection: sqlite3.Connection, since: int, generation: int) -> bool:
    """Whether the log, which has every generation from its oldest on, has the one after ``since``."""
    if not 0 < since < generation:
        return since == generation
    return bool(rows(connection, "SELECT 1 FROM changes WHERE generation = ?", since + 1))


def _views(connection: sqlite3.Connection, wanted: str, *values: object) -> tuple[PrincipalView, ...]:
    """The views of the principals that the statement ``wanted`` finds, in a few statements however many they are."""

    def read(statement: str) -> list[Any]:
        return rows(connection, f"WITH wanted AS ({wanted}) {statement}", *values)

    return views(
        [principal for (principal,) in read(_WANTED)],
        read(_EDGES),
        [TokenEntry(*row) for row in read(_TOKENS)],
        [RouteEntry(*row) for row in read(_ROUTES)],
    )


@implementer(ILeaseAuthority)
class SqliteLeaseAuthority:
    """See :class:`~iop.interfaces.ILeaseAuthority`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def authorise(self, question: LeaseQuestion, now_ms: int) -> Deferred[LeaseGrant | LeaseRefusal]:
        def decide(connection: sqlite3.Connection, _: int) -> tuple[LeaseGrant | LeaseRefusal, Event]:
            durable, envelope = _read(connection, question)
            refused = refusal(question, durable, now_ms)
            # validity counts from when it was asked: the read can only be later (P42)
            answer = refused or LeaseGrant(SealedSecret(*envelope), now_ms)
            return answer, lease_decided(question, refused.reason if refused else "granted")

        return self._writer.audit(decide)


def _read(connection: sqlite3.Connection, question: LeaseQuestion) -> tuple[DurableRows, tuple[str, bytes, bytes]]:
    """The rows, and the envelope of the slot's secret, which is nothing unless the rows agree."""
    binding = question.binding
    [row] = rows(
        connection,
        _DURABLE,
        binding.node,
        question.edge,
        binding.principal,
        question.token_id,
        binding.slot,
        binding.route,
    )
    generation, principal_exists, node_denied, edge_denied, edge_allowed = row[:5]
    token_owner, kind, expires_ms, proof = row[5:9]
    slot_owner, profile, target, state, credential_revision = row[9:14]
    route_owner, route_slot, route_revision = row[17:]
    durable = DurableRows(
        generation=generation,
        principal_exists=bool(principal_exists),
        token=None if token_owner is None else DurableToken(token_owner, TokenKind(kind), expires_ms, proof),
        slot=None
        if slot_owner is None
        else DurableSlot(slot_owner, profile, target, SlotState(state), credential_revision),
        route=None if route_owner is None else DurableRoute(route_owner, route_slot, route_revision),
        node_denied=bool(node_denied),
        edge_denied=bool(edge_denied),
        edge_allowed=bool(edge_allowed),
    )
    return durable, row[14:17]
