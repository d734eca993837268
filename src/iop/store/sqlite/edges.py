"""Connections of Edges, and names that are denied, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zope.interface import implementer

from iop.errors import IdentityRefused, NotFound
from iop.interfaces import IDenials, IEdgeSessions
from iop.records import EdgeSession
from iop.store.events import Event, allowed, denied
from iop.store.sessions import KEPT_MS, acknowledged
from iop.store.shapes import check_denial
from iop.store.sqlite.mutation import Writer, current_generation, rows
from iop.units import new_id

if TYPE_CHECKING:
    import sqlite3

    from twisted.internet.defer import Deferred

    from iop.records import Committed
    from iop.store.sqlite.thread import SqliteThread

_COLUMNS = "session, edge, ready, acknowledged, unconfirmed, opened_ms, ended_ms"


@implementer(IEdgeSessions)
class SqliteEdgeSessions:
    """See :class:`~iop.interfaces.IEdgeSessions`."""

    def __init__(self, writer: Writer, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader

    def open(self, edge: str, now_ms: int) -> Deferred[str]:
        def record(connection: sqlite3.Connection, _: int) -> str:
            if rows(connection, "SELECT 1 FROM denials WHERE kind = 'edge' AND name = ?", edge):
                raise IdentityRefused(f"the Edge {edge} is denied")
            connection.execute("DELETE FROM edge_sessions WHERE ended_ms BETWEEN 1 AND ?", (now_ms - KEPT_MS,))
            session = new_id(now_ms)
            connection.execute(
                f"INSERT INTO edge_sessions ({_COLUMNS}) VALUES (?, ?, 0, 0, 0, ?, 0)",  # noqa: S608 - our own columns
                (session, edge, now_ms),
            )
            return session

        return self._writer.record(record)

    def acknowledge(self, session: str, generation: int, unconfirmed: int) -> Deferred[bool]:
        def record(connection: sqlite3.Connection, _: int) -> bool:
            statement = f"SELECT {_COLUMNS} FROM edge_sessions WHERE session = ? AND ended_ms = 0"  # noqa: S608 - ours
            found = rows(connection, statement, session)
            if not found:
                raise NotFound("there is no such session, or it ended")
            before = _session(found[0])
            after = acknowledged(before, generation, unconfirmed, current_generation(connection))
            connection.execute(
                "UPDATE edge_sessions SET ready = ?, acknowledged = ?, unconfirmed = ? WHERE session = ?",
                (after.ready, after.acknowledged, after.unconfirmed, session),
            )
            return after.ready

        return self._writer.record(record)

    def end(self, session: str, now_ms: int) -> Deferred[None]:
        def record(connection: sqlite3.Connection, _: int) -> None:
            connection.execute(
                "UPDATE edge_sessions SET ended_ms = ? WHERE session = ? AND ended_ms = 0", (now_ms, session)
            )

        return self._writer.record(record)

    def end_all(self, now_ms: int) -> Deferred[None]:
        def record(connection: sqlite3.Connection, _: int) -> None:
            connection.execute("UPDATE edge_sessions SET ended_ms = ? WHERE ended_ms = 0", (now_ms,))

        return self._writer.record(record)

    def since(self, moment_ms: int) -> Deferred[list[EdgeSession]]:
        def job(connection: sqlite3.Connection) -> list[EdgeSession]:
            statement = f"""
                SELECT {_COLUMNS} FROM edge_sessions WHERE ended_ms = 0 OR ended_ms >= ? ORDER BY opened_ms, session
            """  # noqa: S608 - only our own column names
            return [_session(row) for row in rows(connection, statement, moment_ms)]

        return self._reader.run(job)


def _session(row: tuple[str, str, int, int, int, int, int]) -> EdgeSession:
    session, edge, ready, *numbers = row
    return EdgeSession(session, edge, bool(ready), *numbers)


@implementer(IDenials)
class SqliteDenials:
    """See :class:`~iop.interfaces.IDenials`."""

    def __init__(self, writer: Writer, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader

    def deny(self, kind: str, name: str, actor: str) -> Deferred[Committed[None]]:
        def change(connection: sqlite3.Connection, _: int) -> tuple[None, Event]:
            check_denial(kind, name)
            connection.execute("INSERT INTO denials (kind, name) VALUES (?, ?) ON CONFLICT DO NOTHING", (kind, name))
            return None, denied(kind, name, actor)

        return self._writer.mutate(change)

    def allow(self, kind: str, name: str, actor: str) -> Deferred[Committed[None]]:
        def change(connection: sqlite3.Connection, _: int) -> tuple[None, Event]:
            check_denial(kind, name)
            lifted = rows(connection, "DELETE FROM denials WHERE kind = ? AND name = ? RETURNING 1", kind, name)
            if not lifted:
                raise NotFound(f"the {kind} {name} is not denied")
            return None, allowed(kind, name, actor)

        return self._writer.mutate(change)

    def all(self) -> Deferred[list[tuple[str, str]]]:
        def job(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            return rows(connection, "SELECT kind, name FROM denials ORDER BY kind, name")

        return self._reader.run(job)
