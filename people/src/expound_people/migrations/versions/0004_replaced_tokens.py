"""Tokens that were replaced a moment ago."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "replaced_token",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("annotator_id", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False, index=True),
        sa.Column("replaced", sa.DateTime, nullable=False),
    )
