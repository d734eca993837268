"""Slots and routes, as rows. Every statement names the principal, so another's row is never even found (P16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from iop.core.slots import STATE_CHANGES, with_secret, with_state
from iop.errors import FinalState, NotFound, RevisionMismatch
from iop.interfaces import IRoutes, ISlots
from iop.records import RouteRecord, SlotRecord, SlotState
from iop.store.events import Event, route_put, slot_changed, slot_created
from iop.store.room import check_slots
from iop.store.shapes import GONE, check_model, check_name, check_selector, no_such_slot, slot_exists
from iop.store.sqlite.mutation import Writer, rows
from iop.store.sqlite.principals import taken
from iop.units import new_id

if TYPE_CHECKING:
    import sqlite3

    from twisted.internet.defer import Deferred

    from iop.records import Committed, NewSlot, SealedSecret
    from iop.store.sqlite.thread import SqliteThread

_SLOT = "slot, principal, name, profile, target, state, revision, credential_revision, created_ms, updated_ms"
_ROUTE = "route, principal, model, slot, upstream_model, selector, revision, created_ms, updated_ms"


def _slot_record(row: tuple[Any, ...]) -> SlotRecord:
    slot, principal, name, profile, target, state, *numbers = row
    return SlotRecord(slot, principal, name, profile, target, SlotState(state), *numbers)


@implementer(ISlots)
class SqliteSlots:
    """See :class:`~iop.interfaces.ISlots`."""

    def __init__(self, writer: Writer, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader

    def create(self, slot: NewSlot, actor: str) -> Deferred[Committed[SlotRecord]]:
        def change(connection: sqlite3.Connection, now_ms: int) -> tuple[SlotRecord, Event]:
            check_name("slot's name", slot.name)
            check_name("profile", slot.profile)
            check_name("target", slot.target)
            if not rows(connection, "SELECT 1 FROM principals WHERE principal = ?", slot.principal):
                raise NotFound("there is no such principal")
            with taken(slot_exists(slot.name)):
                [row] = rows(
                    connection,
                    f"""
                    INSERT INTO slots ({_SLOT}, key_id, wrapped_key, box)
                    VALUES (?, ?, ?, ?, ?, 'active', 1, 1, ?, ?, ?, ?, ?)
                    RETURNING {_SLOT}
                    """,  # noqa: S608 - only our own column names
                    slot.slot,
                    slot.principal,
                    slot.name,
                    slot.profile,
                    slot.target,
                    now_ms,
                    now_ms,
                    slot.secret.key_id,
                    slot.secret.wrapped_key,
                    slot.secret.box,
                )
            made = _slot_record(row)
            [(count,)] = rows(connection, "SELECT count(*) FROM slots WHERE principal = ?", slot.principal)
            check_slots(count)
            return made, slot_created(made, actor)

        return self._writer.mutate(change)

    def all(self, principal: str) -> Deferred[list[SlotRecord]]:
        def job(connection: sqlite3.Connection) -> list[SlotRecord]:
            statement = f"SELECT {_SLOT} FROM slots WHERE principal = ? ORDER BY name"  # noqa: S608 - our own columns
            return [_slot_record(row) for row in rows(connection, statement, principal)]

        return self._reader.run(job)

    def get(self, principal: str, slot: str) -> Deferred[SlotRecord]:
        return self._reader.run(lambda connection: _own_slot(connection, principal, slot))

    def set_state(
        self, principal: str, slot: str, state: SlotState, expected: int, actor: str
    ) -> Deferred[Committed[SlotRecord]]:
        def change(connection: sqlite3.Connection, now_ms: int) -> tuple[SlotRecord, Event]:
            made = with_state(_own_slot(connection, principal, slot), state, expected, now_ms)
            _write(connection, made, GONE if state is SlotState.REVOKED else None)
            return made, slot_changed(made, STATE_CHANGES[state], actor)

        return self._writer.mutate(change)

    def rotate(
        self, principal: str, slot: str, secret: SealedSecret, expected: int, actor: str
    ) -> Deferred[Committed[SlotRecord]]:
        def change(connection: sqlite3.Connection, now_ms: int) -> tuple[SlotRecord, Event]:
            made = with_secret(_own_slot(connection, principal, slot), expected, now_ms)
            _write(connection, made, secret)
            return made, slot_changed(made, "rotate", actor)

        return self._writer.mutate(change)


def _own_slot(connection: sqlite3.Connection, principal: str, slot: str) -> SlotRecord:
    statement = f"SELECT {_SLOT} FROM slots WHERE principal = ? AND slot = ?"  # noqa: S608 - our own columns
    found = rows(connection, statement, principal, slot)
    if not found:
        raise no_such_slot()
    return _slot_record(found[0])


def _write(connection: sqlite3.Connection, slot: SlotRecord, secret: SealedSecret | None) -> None:
    """Write what may change of a slot, and another sealed secret if there is one."""
    connection.execute(
        "UPDATE slots SET state = ?, revision = ?, credential_revision = ?, updated_ms = ? WHERE slot = ?",
        (slot.state.value, slot.revision, slot.credential_revision, slot.updated_ms, slot.slot),
    )
    if secret is not None:
        connection.execute(
            "UPDATE slots SET key_id = ?, wrapped_key = ?, box = ? WHERE slot = ?",
            (secret.key_id, secret.wrapped_key, secret.box, slot.slot),
        )


@implementer(IRoutes)
class SqliteRoutes:
    """See :class:`~iop.interfaces.IRoutes`."""

    def __init__(self, writer: Writer, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader

    def put(
        self,
        principal: str,
        model: str,
        slot: str,
        upstream_model: str,
        selector: str,
        expected: int | None,
        actor: str,
    ) -> Deferred[Committed[RouteRecord]]:
        def change(connection: sqlite3.Connection, now_ms: int) -> tuple[RouteRecord, Event]:
            check_model(model)
            check_model(upstream_model)
            check_selector(selector)
            if _own_slot(connection, principal, slot).state is SlotState.REVOKED:
                raise FinalState("the slot is revoked", hint="create another slot")
            if expected is None:
                written = rows(
                    connection,
                    f"""
                    INSERT INTO routes ({_ROUTE}) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)
                    ON CONFLICT (principal, model) DO NOTHING
                    RETURNING {_ROUTE}
                    """,  # noqa: S608 - only our own column names
                    new_id(now_ms),
                    principal,
                    model,
                    slot,
                    upstream_model,
                    selector,
                    now_ms,
                    now_ms,
                )
            else:
                written = rows(
                    connection,
                    f"""
                    UPDATE routes
                    SET slot = ?, upstream_model = ?, selector = ?, revision = revision + 1, updated_ms = ?
                    WHERE principal = ? AND model = ? AND revision = ?
                    RETURNING {_ROUTE}
                    """,  # noqa: S608 - only our own column names
                    slot,
                    upstream_model,
                    selector,
                    now_ms,
                    principal,
                    model,
                    expected,
                )
            if not written:
                raise RevisionMismatch(
                    "the route is not at the expected revision", hint="list the routes and try again from what is there"
                )
            made = RouteRecord(*written[0])
            return made, route_put(made, actor)

        return self._writer.mutate(change)

    def all(self, principal: str) -> Deferred[list[RouteRecord]]:
        def job(connection: sqlite3.Connection) -> list[RouteRecord]:
            statement = f"SELECT {_ROUTE} FROM routes WHERE principal = ? ORDER BY model"  # noqa: S608 - our own columns
            return [RouteRecord(*row) for row in rows(connection, statement, principal)]

        return self._reader.run(job)
