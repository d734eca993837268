"""Principals and their tokens, as rows."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zope.interface import implementer

from iop.errors import AlreadyExists, NotFound
from iop.interfaces import IPrincipals, ITokens
from iop.records import PrincipalRecord, TokenKind, TokenRecord
from iop.store.events import Event, principal_created, principal_limited
from iop.store.shapes import check_edges, check_name, principal_exists
from iop.store.sqlite.mutation import Writer, rows
from iop.units import new_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from twisted.internet.defer import Deferred

    from iop.records import Committed, NewToken
    from iop.store.sqlite.thread import SqliteThread


@contextmanager
def taken(refusal: AlreadyExists) -> Iterator[None]:
    """Tell a broken uniqueness as ``refusal``."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            raise refusal from None
        raise


@implementer(IPrincipals)
class SqlitePrincipals:
    """See :class:`~iop.interfaces.IPrincipals`."""

    def __init__(self, writer: Writer, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader

    def create(
        self, name: str, tokens: Sequence[NewToken], actor: str, edges: Collection[str] = ()
    ) -> Deferred[Committed[PrincipalRecord]]:
        def change(connection: sqlite3.Connection, now_ms: int) -> tuple[PrincipalRecord, Event]:
            check_name("principal's name", name)
            made = PrincipalRecord(new_id(now_ms), name, now_ms, check_edges(edges))
            with taken(principal_exists(name)):
                connection.execute(
                    "INSERT INTO principals (principal, name, created_ms) VALUES (?, ?, ?)",
                    (made.principal, name, now_ms),
                )
            with taken(AlreadyExists("a token of that id or value exists already")):
                connection.executemany(
                    """
                    INSERT INTO tokens (token, principal, kind, digest, proof, expires_ms, created_ms)
                    VALUES (?, ?, ?, ?, ?, ?, ?)
                    """,
                    [
                        (
                            each.token_id,
                            made.principal,
                            each.kind.value,
                            each.digest,
                            each.proof,
                            each.expires_ms,
                            now_ms,
                        )
                        for each in tokens
                    ],
                )
            _write_edges(connection, made)
            return made, principal_created(made, tokens, actor)

        return self._writer.mutate(change)

    def limit(self, name: str, edges: Collection[str], actor: str) -> Deferred[Committed[PrincipalRecord]]:
        def change(connection: sqlite3.Connection, _: int) -> tuple[PrincipalRecord, Event]:
            limited = check_edges(edges)
            for principal, created_ms in rows(
                connection, "SELECT principal, created_ms FROM principals WHERE name = ?", name
            ):
                made = PrincipalRecord(principal, name, created_ms, limited)
                connection.execute("DELETE FROM principal_edges WHERE principal = ?", (principal,))
                _write_edges(connection, made)
                return made, principal_limited(made, actor)
            raise NotFound("there is no principal of that name", hint="iop principal list says which there are")

        return self._writer.mutate(change)

    def all(self) -> Deferred[list[PrincipalRecord]]:
        def job(connection: sqlite3.Connection) -> list[PrincipalRecord]:
            edges: dict[str, set[str]] = defaultdict(set)
            for principal, edge in rows(connection, "SELECT principal, edge FROM principal_edges"):
                edges[principal].add(edge)
            found = rows(connection, "SELECT principal, name, created_ms FROM principals ORDER BY name")
            return [
                PrincipalRecord(principal, name, created_ms, frozenset(edges.get(principal, ())))
                for principal, name, created_ms in found
            ]

        return self._reader.run(job)


def _write_edges(connection: sqlite3.Connection, made: PrincipalRecord) -> None:
    connection.executemany(
        "INSERT INTO principal_edges (principal, edge) VALUES (?, ?)", [(made.principal, edge) for edge in made.edges]
    )


@implementer(ITokens)
class SqliteTokens:
    """See :class:`~iop.interfaces.ITokens`."""

    def __init__(self, reader: SqliteThread) -> None:
        self._reader = reader

    def by_digest(self, digest: bytes) -> Deferred[TokenRecord | None]:
        def job(connection: sqlite3.Connection) -> TokenRecord | None:
            found = rows(
                connection,
                "SELECT token, principal, kind, expires_ms, created_ms FROM tokens WHERE digest = ?",
                digest,
            )
            for token, principal, kind, expires_ms, created_ms in found:
                return TokenRecord(token, principal, TokenKind(kind), expires_ms, created_ms)
            return None

        return self._reader.run(job)
