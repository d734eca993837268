"""The audit, as rows that a trigger keeps from being changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from zope.interface import implementer

from iop.interfaces import IAudit
from iop.records import AuditRow
from iop.store.events import Event
from iop.store.sqlite.mutation import Writer, rows

if TYPE_CHECKING:
    import sqlite3

    from twisted.internet.defer import Deferred

    from iop.store.sqlite.thread import SqliteThread

_TAIL = """
    SELECT sequence, at_ms, actor, action, subject, outcome, details FROM audit ORDER BY sequence DESC LIMIT ?
"""


@implementer(IAudit)
class SqliteAudit:
    """See :class:`~iop.interfaces.IAudit`."""

    def __init__(self, writer: Writer, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader

    @property
    def newest(self) -> int:
        return self._writer.newest

    def append(
        self, actor: str, action: str, subject: str, outcome: str, details: dict[str, str | int]
    ) -> Deferred[None]:
        event = Event(actor, action, subject, outcome, dict(details), "")
        return self._writer.audit(lambda connection, now_ms: (None, event))

    def tail(self, count: int) -> Deferred[list[AuditRow]]:
        def job(connection: sqlite3.Connection) -> list[AuditRow]:
            newest_first = rows(connection, _TAIL, count)
            return [_audit_row(*row) for row in reversed(newest_first)]

        return self._reader.run(job)


def _audit_row(
    sequence: int, at_ms: int, actor: str, action: str, subject: str, outcome: str, details: str
) -> AuditRow:
    return AuditRow(sequence, at_ms, actor, action, subject, outcome, json.loads(details))
