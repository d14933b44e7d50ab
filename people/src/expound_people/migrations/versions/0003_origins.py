"""Origins of studies: models, data and digests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.add_column("project", sa.Column("origin", sa.JSON))
