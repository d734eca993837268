"""What somebody who looks after a deployment asks of its database, in one reading, also beside a Control Plane."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iop.store.failures import translated
from iop.store.schema import connect, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Survey:
    """One reading.

    :ivar sealed: ids of the slots that may be leased again, by the id of the keyring's key that their secret is under.
    :ivar denied: every (kind, name) denied, ``node`` or ``edge``.
    """

    sealed: Mapping[str, Sequence[str]]
    denied: frozenset[tuple[str, str]]


def survey(path: Path, deployment_id: str) -> Survey:
    """Read the database ``path`` of a deployment; nothing is written, and no secret is read.

    :raises StoreBusy: if another process holds it.
    :raises StoreUnavailable: if it cannot be read, or its schema is not current.
    :raises DeploymentMismatch: if it is another deployment's.
    :raises FileRefused: if others own or may open it.
    """
    with translated("nothing was read"), closing(connect(path)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        require(connection, path, deployment_id)
        sealed: dict[str, list[str]] = defaultdict(list)
        for key_id, slot in connection.execute("SELECT key_id, slot FROM slots WHERE state <> 'revoked' ORDER BY slot"):
            sealed[key_id].append(slot)
        denied = connection.execute("SELECT kind, name FROM denials").fetchall()
        return Survey(dict(sealed), frozenset(denied))
