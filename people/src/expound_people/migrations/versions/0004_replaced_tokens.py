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
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("annotator_id", sa.Integer(), nullable=False),
        sa.Column("replaced", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotator.id"], name="fk_replaced_token_annotator_id"),
        sa.PrimaryKeyConstraint("digest", name="pk_replaced_token"),
    )
    op.create_index("ix_replaced_token_annotator_id", "replaced_token", ["annotator_id"])


def downgrade() -> None:
    """Drop the table with its content."""
    op.drop_table("replaced_token")
