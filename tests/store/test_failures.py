"""What people are told of a database that fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.errors import StoreBusy, StoreUnavailable
from iop.store.failures import as_store_error


class FailureTests(SynchronousTestCase):
    def test_damaged(self) -> None:
        """P47: a file that is no database, or no whole one, is told as damaged and not as a matter of permissions."""
        path = Path(self.mktemp())
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE a (b)")
            database.executemany("INSERT INTO a VALUES (?)", [("x" * 1000,)] * 100)
            database.commit()
        content = path.read_bytes()
        for broken in (b"x" * len(content), content[:4096] + b"\xff" * 8192 + content[12288:]):
            path.write_bytes(broken)
            with closing(sqlite3.connect(path)) as database:
                raised = self.assertRaises(sqlite3.DatabaseError, database.execute, "SELECT b FROM a")
            told = as_store_error(raised, "nothing was changed")
            self.assertIsInstance(told, StoreUnavailable)
            self.assertEqual(told.message, "the database is damaged; nothing was changed")
            self.assertIn("copy", told.hint)

    def test_held(self) -> None:
        """A database that another process holds is worth another try."""
        path = Path(self.mktemp())
        with closing(sqlite3.connect(path)) as holder, closing(sqlite3.connect(path, timeout=0)) as other:
            holder.execute("BEGIN EXCLUSIVE")
            raised = self.assertRaises(sqlite3.OperationalError, other.execute, "BEGIN EXCLUSIVE")
        self.assertIsInstance(as_store_error(raised, "nothing was changed"), StoreBusy)
