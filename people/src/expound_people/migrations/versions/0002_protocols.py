"""Protocols, platform ids and status of annotators, and the table of steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns and the table of steps."""
    op.add_column("annotator", sa.Column("person", sa.String(200)))
    op.add_column("annotator", sa.Column("source", sa.JSON))
    op.add_column("annotator", sa.Column("slot", sa.Integer))
    op.add_column("annotator", sa.Column("items", sa.JSON))
    op.add_column("annotator", sa.Column("status", sa.String(20), nullable=False, server_default=""))
    op.add_column("annotator", sa.Column("ended", sa.DateTime))
    op.add_column("item", sa.Column("role", sa.String(20), nullable=False, server_default=""))
    op.add_column("project", sa.Column("protocol", sa.Text))
    op.create_index("uq_annotator_person", "annotator", ["project_id", "person"], unique=True)
    op.create_table(
        "step",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("annotator_id", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False, index=True),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.UniqueConstraint("annotator_id", "name", "attempt"),
    )
