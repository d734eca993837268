"""The store on SQLite: one writer, one reader, one file."""

from iop.store.sqlite.store import SqliteStore, open_sqlite

__all__ = ["SqliteStore", "open_sqlite"]
