"""The first schema. Plain SQL, as every revision; there is no way down but a backup."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

_TABLES = (
    # One row: which deployment this database was made for.
    """
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        deployment TEXT NOT NULL CHECK (deployment <> '')
    ) STRICT
    """,
    # One row: what every mutation raises in its own transaction.
    """
    CREATE TABLE generation (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        value INTEGER NOT NULL CHECK (value >= 1)
    ) STRICT
    """,
    "INSERT INTO generation (one, value) VALUES (1, 1)",
    """
    CREATE TABLE principals (
        principal TEXT NOT NULL PRIMARY KEY CHECK (principal <> ''),
        name TEXT NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 63),
        created_ms INTEGER NOT NULL CHECK (created_ms > 0)
    ) STRICT
    """,
    """
    CREATE TABLE tokens (
        token TEXT NOT NULL PRIMARY KEY CHECK (token <> ''),
        principal TEXT NOT NULL REFERENCES principals (principal),
        kind TEXT NOT NULL CHECK (kind IN ('use', 'manage')),
        digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
        proof BLOB NOT NULL CHECK (length(proof) = 32),
        expires_ms INTEGER NOT NULL CHECK (expires_ms >= 0),
        created_ms INTEGER NOT NULL CHECK (created_ms > 0)
    ) STRICT
    """,
    """
    CREATE TABLE slots (
        slot TEXT NOT NULL PRIMARY KEY CHECK (slot <> ''),
        principal TEXT NOT NULL REFERENCES principals (principal),
        name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 63),
        profile TEXT NOT NULL CHECK (profile <> ''),
        target TEXT NOT NULL CHECK (target <> ''),
        state TEXT NOT NULL CHECK (state IN ('active', 'disabled', 'revoked')),
        revision INTEGER NOT NULL CHECK (revision >= 1),
        credential_revision INTEGER NOT NULL CHECK (credential_revision BETWEEN 1 AND revision),
        key_id TEXT NOT NULL CHECK (key_id <> ''),
        wrapped_key BLOB NOT NULL CHECK (length(wrapped_key) BETWEEN 1 AND 1024),
        box BLOB NOT NULL CHECK (length(box) BETWEEN 1 AND 131072),
        created_ms INTEGER NOT NULL CHECK (created_ms > 0),
        updated_ms INTEGER NOT NULL CHECK (updated_ms > 0),
        UNIQUE (principal, name),
        UNIQUE (principal, slot)
    ) STRICT
    """,
    # The pair of the foreign key makes a route to another principal's slot impossible.
    """
    CREATE TABLE routes (
        route TEXT NOT NULL PRIMARY KEY CHECK (route <> ''),
        principal TEXT NOT NULL,
        model TEXT NOT NULL CHECK (length(model) BETWEEN 1 AND 256),
        slot TEXT NOT NULL,
        upstream_model TEXT NOT NULL CHECK (length(upstream_model) BETWEEN 1 AND 256),
        selector TEXT NOT NULL CHECK (length(selector) <= 1024),
        revision INTEGER NOT NULL CHECK (revision >= 1),
        created_ms INTEGER NOT NULL CHECK (created_ms > 0),
        updated_ms INTEGER NOT NULL CHECK (updated_ms > 0),
        UNIQUE (principal, model),
        FOREIGN KEY (principal, slot) REFERENCES slots (principal, slot)
    ) STRICT
    """,
    """
    CREATE TABLE edge_sessions (
        session TEXT NOT NULL PRIMARY KEY CHECK (session <> ''),
        edge TEXT NOT NULL CHECK (edge <> ''),
        ready INTEGER NOT NULL CHECK (ready IN (0, 1)),
        acknowledged INTEGER NOT NULL CHECK (acknowledged >= 0),
        unconfirmed INTEGER NOT NULL CHECK (unconfirmed >= 0),
        opened_ms INTEGER NOT NULL CHECK (opened_ms > 0),
        ended_ms INTEGER NOT NULL CHECK (ended_ms >= 0)
    ) STRICT
    """,
    "CREATE INDEX edge_sessions_ended ON edge_sessions (ended_ms)",
    # Names that nobody may use. Not a registry: it says nothing about what exists (C47).
    """
    CREATE TABLE denials (
        kind TEXT NOT NULL CHECK (kind IN ('node', 'edge')),
        name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 63),
        PRIMARY KEY (kind, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE audit (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        at_ms INTEGER NOT NULL CHECK (at_ms > 0),
        actor TEXT NOT NULL CHECK (actor <> ''),
        action TEXT NOT NULL CHECK (action <> ''),
        subject TEXT NOT NULL,
        outcome TEXT NOT NULL CHECK (outcome <> ''),
        details TEXT NOT NULL
    ) STRICT
    """,
    "CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER audit_is_not_cut BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'append-only'); END",
)


def upgrade() -> None:
    """Make every table."""
    for statement in _TABLES:
        op.execute(statement)
