"""What Edges may know, and what a lease depends on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from zope.interface import implementer

from iop.core.durable import DurableRoute, DurableRows, DurableSlot, DurableToken, refusal
from iop.interfaces import ILeaseAuthority, IProjections
from iop.records import (
    LeaseGrant,
    PrincipalView,
    ProjectionSnapshot,
    Reading,
    RouteEntry,
    SealedSecret,
    SlotState,
    TokenEntry,
    TokenKind,
)
from iop.store.events import lease_decided
from iop.store.sqlite.mutation import Writer, current_generation, rows

if TYPE_CHECKING:
    import sqlite3

    from twisted.internet.defer import Deferred

    from iop.records import LeaseQuestion, LeaseRefusal
    from iop.store.events import Event
    from iop.store.sqlite.thread import SqliteThread

_TOKENS = "SELECT token, principal, digest, expires_ms FROM tokens WHERE kind = 'use' ORDER BY token"
_ROUTES = """
    SELECT routes.route, routes.principal, routes.slot, slots.profile, slots.target, routes.model,
           routes.upstream_model, routes.selector, slots.credential_revision, routes.revision
    FROM routes JOIN slots USING (principal, slot)
    WHERE slots.state = 'active'
    ORDER BY routes.route
"""
#: Everything a lease depends on, in one row whatever exists; who owns what is compared, not searched for.
_DURABLE = """
    SELECT generation.value, principals.principal IS NOT NULL,
           EXISTS (SELECT 1 FROM denials WHERE kind = 'node' AND name = ?),
           EXISTS (SELECT 1 FROM denials WHERE kind = 'edge' AND name = ?),
           tokens.principal, tokens.kind, tokens.expires_ms, tokens.proof,
           slots.principal, slots.profile, slots.target, slots.state, slots.credential_revision,
           slots.key_id, slots.wrapped_key, slots.box,
           routes.principal, routes.slot, routes.revision
    FROM generation
    LEFT JOIN principals ON principals.principal = ?
    LEFT JOIN tokens ON tokens.token = ?
    LEFT JOIN slots ON slots.slot = ?
    LEFT JOIN routes ON routes.route = ?
"""


@implementer(IProjections)
class SqliteProjections:
    """See :class:`~iop.interfaces.IProjections`."""

    def __init__(self, reader: SqliteThread) -> None:
        self._reader = reader

    def generation(self) -> Deferred[int]:
        return self._reader.run(current_generation)

    def snapshot(self, edge: str) -> Deferred[ProjectionSnapshot]:
        def job(connection: sqlite3.Connection) -> ProjectionSnapshot:
            return ProjectionSnapshot(
                current_generation(connection),
                tuple(TokenEntry(*row) for row in rows(connection, _TOKENS)),
                tuple(RouteEntry(*row) for row in rows(connection, _ROUTES)),
            )

        return self._reader.run(job)

    def reading(self, since: int) -> Deferred[Reading]:
        return self._reader.run(lambda connection: Reading(current_generation(connection), True, _views(connection)))


def _views(connection: sqlite3.Connection) -> tuple[PrincipalView, ...]:
    tokens: dict[str, list[TokenEntry]] = defaultdict(list)
    for row in rows(connection, _TOKENS):
        token = TokenEntry(*row)
        tokens[token.principal].append(token)
    routes: dict[str, list[RouteEntry]] = defaultdict(list)
    for row in rows(connection, _ROUTES):
        route = RouteEntry(*row)
        routes[route.principal].append(route)
    return tuple(
        PrincipalView(principal, frozenset(), tuple(tokens[principal]), tuple(routes[principal]))
        for (principal,) in rows(connection, "SELECT principal FROM principals ORDER BY principal")
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
    generation, principal_exists, node_denied, edge_denied = row[:4]
    token_owner, kind, expires_ms, proof = row[4:8]
    slot_owner, profile, target, state, credential_revision = row[8:13]
    route_owner, route_slot, route_revision = row[16:]
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
    )
    return durable, row[13:16]
