"""What each generation changed, which Edges a principal is limited to, and how much of a projection is taken."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

_STATEMENTS = (
    # One row per mutation: whom it touched, or nobody. Who is gone stays named, so there is no reference.
    """
    CREATE TABLE changes (
        generation INTEGER PRIMARY KEY CHECK (generation >= 2),
        principal TEXT NOT NULL
    ) STRICT
    """,
    # Where there is no row of a principal, every Edge may know of it. Not a registry: an Edge need not exist (C47).
    """
    CREATE TABLE principal_edges (
        principal TEXT NOT NULL REFERENCES principals (principal),
        edge TEXT NOT NULL CHECK (length(edge) BETWEEN 1 AND 63),
        PRIMARY KEY (principal, edge)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX tokens_of_principal ON tokens (principal, token)",
    # Bytes of a projection that are this principal's; one row has the sum, so that no mutation adds up all of them.
    "ALTER TABLE principals ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0)",
    """
    UPDATE principals SET bytes = (
        SELECT coalesce(sum(64 + length(token) + length(principal)), 0)
        FROM tokens WHERE tokens.principal = principals.principal AND kind = 'use'
    ) + (
        SELECT coalesce(sum(
            64 + length(route) + length(routes.principal) + length(slot) + length(profile) + length(target)
               + length(CAST(model AS BLOB)) + length(CAST(upstream_model AS BLOB)) + length(CAST(selector AS BLOB))
        ), 0)
        FROM routes JOIN slots USING (principal, slot) WHERE routes.principal = principals.principal
    )
    """,
    """
    CREATE TABLE room (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        bytes INTEGER NOT NULL CHECK (bytes >= 0)
    ) STRICT
    """,
    "INSERT INTO room (one, bytes) SELECT 1, coalesce(sum(bytes), 0) FROM principals",
)


def upgrade() -> None:
    """Make the tables, and count what is there."""
    for statement in _STATEMENTS:
        op.execute(statement)
