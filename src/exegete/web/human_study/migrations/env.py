"""The Alembic environment: runs migrations on the connection and in the transaction that it was given."""

from __future__ import annotations

from alembic import context

from exegete.web.human_study.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()
