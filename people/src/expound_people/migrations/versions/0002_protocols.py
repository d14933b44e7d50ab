"""Protocols, platform ids and status of annotators, and the table of steps."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


# A function, because a Column object can be added to one table only.
def _make_columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "annotator": [
            sa.Column("person", sa.String(200), nullable=True),
            sa.Column("source", sa.JSON(), nullable=True),
            sa.Column("slot", sa.Integer(), nullable=True),
            sa.Column("items", sa.JSON(), nullable=True),
            sa.Column("status", sa.String(20), nullable=False, server_default=""),
            sa.Column("ended", sa.DateTime(), nullable=True),
        ],
        "item": [sa.Column("role", sa.String(20), nullable=False, server_default="")],
        "project": [sa.Column("protocol", sa.Text(), nullable=True)],
    }


def upgrade() -> None:
    """Add the columns and the table of steps."""
    for table, columns in _make_columns().items():
        for column in columns:
            op.add_column(table, column)
    op.create_index("uq_annotator_person", "annotator", ["project_id", "person"], unique=True)
    op.create_table(
        "step",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotator.id"], name="fk_step_annotator_id"),
        sa.PrimaryKeyConstraint("id", name="pk_step"),
        sa.UniqueConstraint("annotator_id", "name", "attempt", name="uq_step_annotator_id"),
    )
    op.create_index("ix_step_annotator_id", "step", ["annotator_id"])


def downgrade() -> None:
    """Drop the columns and the table with their content."""
    op.drop_table("step")
    op.drop_index("uq_annotator_person", "annotator")
    for table, columns in _make_columns().items():
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column.name)
