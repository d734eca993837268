"""What alembic runs: our revisions, on the connection and in the transaction that :mod:`iop.store.schema` opened."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
