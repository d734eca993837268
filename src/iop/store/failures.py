"""What SQLite says when it fails, in our words: its own would name statements and columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from iop.errors import IopError, StoreBusy, StoreUnavailable

#: A transaction whose end could not be written: SQLite takes it back, at the latest when it reads its log again. Other
#: failures, of fsync above all, leave a COMMIT's outcome open.
_UNWRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


def outcome_of_commit(error: sqlite3.Error) -> str:
    """What became of a change whose COMMIT failed, as the end of a sentence."""
    unwritten = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) in _UNWRITTEN
    return "nothing was changed" if unwritten else "whether the change holds is unknown"


@contextmanager
def translated(outcome: str) -> Iterator[None]:
    """Raise what SQLite raises in the block as :func:`as_store_error` tells it."""
    try:
        yield
    except sqlite3.Error as error:
        raise as_store_error(error, outcome) from error


def as_store_error(error: BaseException, outcome: str) -> IopError:
    """The error to raise for what a database raised.

    :param outcome: what became of the change, as the end of a sentence.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    # the extended codes have the primary one in their lowest byte
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"another process holds the database; {outcome}", hint="try again")
    if primary == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"the database's disk is full; {outcome}", hint="free some space on its disk")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreUnavailable(
            f"the database is damaged; {outcome}",
            hint="stop the Control Plane and put back a copy; Edges that are ahead of it will say so",
        )
    return StoreUnavailable(
        f"the database failed (SQLite error {code}); {outcome}", hint="look at the database's disk and permissions"
    )
