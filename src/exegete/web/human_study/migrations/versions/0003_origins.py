"""Origins: the models, data and digests that a study was made of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds the column."""
    op.add_column("project", sa.Column("origin", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Removes it, and what it holds."""
    with op.batch_alter_table("project") as batch:
        batch.drop_column("origin")
