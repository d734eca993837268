"""The whole store, opened."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, execute
from zope.interface import implementer

from iop.interfaces import IStore
from iop.store import schema
from iop.store.failures import translated
from iop.store.sqlite.audit import SqliteAudit
from iop.store.sqlite.edges import SqliteDenials, SqliteEdgeSessions
from iop.store.sqlite.mutation import Writer, newest_audit_row
from iop.store.sqlite.principals import SqlitePrincipals, SqliteTokens
from iop.store.sqlite.projections import SqliteLeaseAuthority, SqliteProjections
from iop.store.sqlite.slots import SqliteRoutes, SqliteSlots
from iop.store.sqlite.thread import SqliteThread

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.interfaces import IReactorFromThreads


def system_wall_ms() -> int:
    """The system's wall clock in Unix milliseconds, for processes too short to outlive a step of it."""
    return time.time_ns() // 1_000_000


def open_sqlite(
    path: Path, deployment_id: str, reactor: IReactorFromThreads, wall_ms: Callable[[], int] = system_wall_ms
) -> Deferred[SqliteStore]:
    """Open the database that :func:`iop.store.schema.migrate` made.

    Opening is done at once, on the calling thread: a role starts before it serves. A locked database can hold it for a
    second.

    :param path: of the database file.
    :param deployment_id: whose it must be.
    :param reactor: where results are told.
    :param wall_ms: the present in Unix milliseconds, called on the writer's thread; a role passes its clock's.

    Fails with :class:`~iop.errors.StoreUnavailable` if there is no database or its schema is not current, and with
    :class:`~iop.errors.DeploymentMismatch` if it is another deployment's.
    """
    return execute(_open, path, deployment_id, reactor, wall_ms)


def _open(path: Path, deployment_id: str, reactor: IReactorFromThreads, wall_ms: Callable[[], int]) -> SqliteStore:
    writing, reading, newest = _connect_both(path, deployment_id)
    return SqliteStore(
        SqliteThread(writing, "BEGIN IMMEDIATE", reactor, "iop-store-writer"),
        SqliteThread(reading, "BEGIN", reactor, "iop-store-reader"),
        wall_ms,
        newest,
    )


def _connect_both(path: Path, deployment_id: str) -> tuple[sqlite3.Connection, sqlite3.Connection, int]:
    """The two connections, and the number of the newest audit row."""
    with translated(f"{path} was not opened"), ExitStack() as opened:
        writing = schema.connect(path)
        opened.callback(writing.close)
        schema.require(writing, path, deployment_id)
        reading = schema.connect(path)
        opened.callback(reading.close)
        reading.execute("PRAGMA query_only = ON")
        newest = newest_audit_row(reading)
        opened.pop_all()
        return writing, reading, newest


@implementer(IStore)
class SqliteStore:
    """See :class:`~iop.interfaces.IStore`; made by :func:`open_sqlite`.

    :param writer: the thread that changes the database.
    :param reader: the thread that lists and takes snapshots.
    :param wall_ms: the present in Unix milliseconds.
    :param newest: number of the newest audit row.
    """

    def __init__(self, writer: SqliteThread, reader: SqliteThread, wall_ms: Callable[[], int], newest: int) -> None:
        self._writer = writer
        self._reader = reader
        changes = Writer(writer, wall_ms, newest)
        self.principals = SqlitePrincipals(changes, reader)
        self.tokens = SqliteTokens(reader)
        self.slots = SqliteSlots(changes, reader)
        self.routes = SqliteRoutes(changes, reader)
        self.projections = SqliteProjections(reader)
        self.leases = SqliteLeaseAuthority(changes)
        self.edge_sessions = SqliteEdgeSessions(changes, reader)
        self.denials = SqliteDenials(changes, reader)
        self.audit = SqliteAudit(changes, reader)

    def deployment_id(self) -> Deferred[str]:
        return self._reader.run(schema.deployment)

    def close(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        await self._writer.close()
        await self._reader.close()
