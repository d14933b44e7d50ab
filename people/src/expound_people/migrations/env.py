"""The Alembic environment: run migrations on the caller's connection, inside the caller's transaction."""

from __future__ import annotations

from alembic import context

from expound_people.tables import Base

# SQLite cannot drop or alter columns; in batch mode Alembic copies the table instead.
context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()
