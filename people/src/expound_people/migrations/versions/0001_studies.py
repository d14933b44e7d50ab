"""Tables of studies, examples, explanations, annotators and answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of human studies."""
    op.create_table(
        "project",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_project"),
        sa.UniqueConstraint("name", name="uq_project_name"),
    )
    op.create_table(
        "item",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("picture", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name="fk_item_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_item"),
        sa.UniqueConstraint("project_id", "number", name="uq_item_project_id"),
    )
    op.create_table(
        "explanation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("item_id", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(200), nullable=False),
        sa.Column("attribution", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["item.id"], name="fk_explanation_item_id"),
        sa.PrimaryKeyConstraint("id", name="pk_explanation"),
        sa.UniqueConstraint("item_id", "method", name="uq_explanation_item_id"),
    )
    op.create_table(
        "annotator",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("token_digest", sa.String(64), nullable=True),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.Column("joined", sa.DateTime(), nullable=True),
        sa.Column("revoked", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name="fk_annotator_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_annotator"),
        sa.UniqueConstraint("token_digest", name="uq_annotator_token_digest"),
    )
    op.create_table(
        "answer",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Integer(), nullable=False),
        sa.Column("item_id", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(20), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.Column("updated", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotator.id"], name="fk_answer_annotator_id"),
        sa.ForeignKeyConstraint(["item_id"], ["item.id"], name="fk_answer_item_id"),
        sa.PrimaryKeyConstraint("id", name="pk_answer"),
        sa.UniqueConstraint("annotator_id", "item_id", "phase", name="uq_answer_annotator_id"),
    )
    for table, column in (
        ("item", "project_id"),
        ("explanation", "item_id"),
        ("annotator", "project_id"),
        ("answer", "annotator_id"),
        ("answer", "item_id"),
    ):
        op.create_index(f"ix_{table}_{column}", table, [column])


def downgrade() -> None:
    """Drop the tables with their content."""
    for table in ("answer", "annotator", "explanation", "item", "project"):
        op.drop_table(table)
