"""What every job on the database is made of: reading to the end, and changing with generation and audit row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from iop.records import Committed
from iop.store.readings import forgotten
from iop.store.room import ROUTE_OVERHEAD, TOKEN_OVERHEAD, check_room

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from iop.store.events import Event
    from iop.store.sqlite.thread import SqliteThread

T = TypeVar("T")

#: Bytes of one principal's tokens, and of its routes, as :mod:`iop.store.room` counts them.
_ROOM = """
    SELECT (
        SELECT coalesce(sum(?1 + length(token) + length(principal)), 0)
        FROM tokens WHERE principal = ?3 AND kind = 'use'
    ), (
        SELECT coalesce(sum(
            ?2 + length(route) + length(routes.principal) + length(slot) + length(profile) + length(target)
               + length(CAST(model AS BLOB)) + length(CAST(upstream_model AS BLOB)) + length(CAST(selector AS BLOB))
        ), 0)
        FROM routes JOIN slots USING (principal, slot) WHERE routes.principal = ?3
    )
"""


def rows(connection: sqlite3.Connection, statement: str, *values: object) -> list[Any]:
    """Every row of ``statement``; its cursor is at its end, so it pins no snapshot."""
    return connection.execute(statement, values).fetchall()


def current_generation(connection: sqlite3.Connection) -> int:
    """The generation as this transaction sees it."""
    [(generation,)] = rows(connection, "SELECT value FROM generation")
    return int(generation)


def newest_audit_row(connection: sqlite3.Connection) -> int:
    """The number of the newest audit row as this transaction sees it, or 0."""
    [(newest,)] = rows(connection, "SELECT coalesce(max(sequence), 0) FROM audit")
    return int(newest)


def _write_event(connection: sqlite3.Connection, at_ms: int, event: Event) -> int:
    """Append the audit row of ``event``; answers its number."""
    [(sequence,)] = rows(
        connection,
        "INSERT INTO audit (at_ms, actor, action, subject, outcome, details) VALUES (?, ?, ?, ?, ?, ?)"
        " RETURNING sequence",
        *(at_ms, event.actor, event.action, event.subject, event.outcome, json.dumps(dict(event.details))),
    )
    return int(sequence)


def _take_room(connection: sqlite3.Connection, principal: str) -> None:
    """Count anew what ``principal`` takes of a projection.

    A route counts whatever state its slot is in, since that may change back.

    :raises QuotaReached: if with this transaction's change the projection is full, or this principal's share of it.
    """
    [(tokens, routes)] = rows(connection, _ROOM, TOKEN_OVERHEAD, ROUTE_OVERHEAD, principal)
    [(everything,)] = rows(
        connection,
        "UPDATE room SET bytes = bytes + ? - (SELECT bytes FROM principals WHERE principal = ?) RETURNING bytes",
        tokens + routes,
        principal,
    )
    connection.execute("UPDATE principals SET bytes = ? WHERE principal = ?", (tokens + routes, principal))
    check_room(everything, routes)


class Writer:
    """The one way to change the database.

    :param thread: whose transactions begin immediately.
    :param wall_ms: the present in Unix milliseconds; called on the thread, under the write lock.
    :param newest: number of the newest audit row there is.
    :ivar newest: the same, followed by each row that is committed here.
    """

    def __init__(self, thread: SqliteThread, wall_ms: Callable[[], int], newest: int) -> None:
        self._thread = thread
        self._wall_ms = wall_ms
        self.newest = newest

    def mutate(self, change: Callable[[sqlite3.Connection, int], tuple[T, Event]]) -> Deferred[Committed[T]]:
        """Apply ``change(connection, now_ms)``, raise the generation by one and write the audit row, all or nothing.

        Whom the change touches is noted for readings of what changed, and must have room in a projection. The time is
        taken under the write lock: every lease that an older generation allowed was read before it.
        """

        def audited(connection: sqlite3.Connection, now_ms: int) -> tuple[Committed[T], Event]:
            value, event = change(connection, now_ms)
            if event.touches:
                _take_room(connection, event.touches)
            [(generation,)] = rows(connection, "UPDATE generation SET value = value + 1 RETURNING value")
            connection.execute("INSERT INTO changes (generation, principal) VALUES (?, ?)", (generation, event.touches))
            connection.execute("DELETE FROM changes WHERE generation <= ?", (forgotten(generation),))
            return Committed(value, generation, now_ms), event

        return self.audit(audited)

    def audit(self, change: Callable[[sqlite3.Connection, int], tuple[T, Event]]) -> Deferred[T]:
        """Apply ``change(connection, now_ms)`` and write the audit row, all or nothing."""

        def job(connection: sqlite3.Connection) -> tuple[T, int]:
            now_ms = self._wall_ms()
            value, event = change(connection, now_ms)
            return value, _write_event(connection, now_ms, event)

        return self._thread.run(job).addCallback(self._committed)

    def record(self, change: Callable[[sqlite3.Connection, int], T]) -> Deferred[T]:
        """Apply ``change(connection, now_ms)``, which alters nothing that Edges know of, nor that is audited."""
        return self._thread.run(lambda connection: change(connection, self._wall_ms()))

    def _committed(self, outcome: tuple[T, int]) -> T:
        # told in the order of the commits, so the number only grows
        value, self.newest = outcome
        return value
