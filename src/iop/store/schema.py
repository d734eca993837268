"""The database file: making it, bringing its schema up to date, and telling whether it is."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iop.errors import DeploymentMismatch, FileRefused, StoreUnavailable
from iop.files import check_private
from iop.store.failures import as_store_error, translated

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

#: The newest revision in ``migrations/versions``; a test keeps them equal. Here, so that a role starts without alembic.
CURRENT: Final = "0002"
#: How long a statement waits for another process's lock.
LOCK_SECONDS: Final = 1.0
_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_MIGRATE_HINT: Final = "run `iop store migrate --config FILE`"


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the existing database ``path``, for use on one thread, whichever that is.

    :raises StoreBusy: if another process holds it.
    :raises StoreUnavailable: if there is none or it cannot be opened.
    :raises FileRefused: if others own or may open it.
    """
    if not path.exists():
        raise StoreUnavailable(f"there is no database at {path}", hint=_MIGRATE_HINT)
    check_private(path)
    with translated(f"{path} was not opened"), ExitStack() as opened:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        opened.callback(connection.close)
        # WAL lets one process read while another writes; FULL makes COMMIT wait for the disk
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        opened.pop_all()
    return connection


def version(connection: sqlite3.Connection) -> str:
    """The revision of the schema, or an empty string if the database has none."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'alembic_version'").fetchall():
        return ""
    return ",".join(
        revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version").fetchall()
    )


def deployment(connection: sqlite3.Connection) -> str:
    """The deployment a database of the current schema was made for."""
    [(found,)] = connection.execute("SELECT deployment FROM meta").fetchall()
    return str(found)


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What a database says of itself; ``deployment`` and ``generation`` are known for the current schema only."""

    schema: str
    deployment: str | None
    generation: int | None

    @property
    def current(self) -> bool:
        """Whether this version of iop can open it."""
        return self.schema == CURRENT


def status(path: Path) -> StoreStatus:
    """Look at a database, whatever its schema.

    :raises StoreUnavailable: if there is none or it cannot be read.
    """
    with translated("nothing was read"), closing(connect(path)) as connection:
        found = version(connection)
        if found != CURRENT:
            return StoreStatus(found, None, None)
        [(generation,)] = connection.execute("SELECT value FROM generation").fetchall()
        return StoreStatus(found, deployment(connection), generation)


def require(connection: sqlite3.Connection, path: Path, deployment_id: str) -> None:
    """Refuse a database that is not of the current schema, or not this deployment's.

    :raises StoreUnavailable: if ``iop store migrate`` must run first, or a newer iop made the schema.
    :raises DeploymentMismatch: if another deployment's.
    """
    found = version(connection)
    if found != CURRENT:
        raise StoreUnavailable(f"{path} has schema {found or 'none'}, not {CURRENT}", hint=_MIGRATE_HINT)
    require_deployment(deployment(connection), path, deployment_id)


def require_deployment(found: str, path: Path, deployment_id: str) -> None:
    """:raises DeploymentMismatch: if ``found`` is not ``deployment_id``."""
    if found != deployment_id:
        raise DeploymentMismatch(
            f"{path} belongs to deployment {found}, not {deployment_id}",
            hint="correct [store] path or [deployment] id in the configuration",
        )


def migrate(path: Path, deployment_id: str) -> None:
    """Make the database, or bring it to the current schema; nothing happens if it is. All or nothing.

    :raises DeploymentMismatch: if it is another deployment's.
    :raises FileRefused: if the file cannot be made.
    :raises StoreBusy: if another process holds the database.
    :raises StoreUnavailable: if the schema is one this version does not know, or the database cannot be used.
    """
    # a role starts without these two
    from alembic.util.exc import CommandError
    from sqlalchemy.exc import DBAPIError

    _make(path)
    try:
        _upgrade(path, deployment_id)
    except CommandError as error:
        raise StoreUnavailable(
            f"{path} has a schema that this version of iop does not know", hint="use the version that wrote it"
        ) from error
    except DBAPIError as error:
        raise as_store_error(error.orig or error, "nothing was changed") from error


def _make(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise FileRefused(
            f"{path} cannot be made: {error.strerror}", hint=f"check what `ls -ld {path.parent} {path}` says"
        ) from error


def _upgrade(path: Path, deployment_id: str) -> None:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    engine = create_engine("sqlite://", creator=lambda: connect(path), poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # sqlite3 in autocommit mode begins nothing itself
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, CURRENT)
        connection.exec_driver_sql(
            "INSERT INTO meta (one, deployment) VALUES (1, ?) ON CONFLICT DO NOTHING", (deployment_id,)
        )
        require_deployment(connection.exec_driver_sql("SELECT deployment FROM meta").scalar_one(), path, deployment_id)
