"""Tables of studies, examples, explanations, annotators, answers, steps and replaced tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# The number of the last of the revisions that this one joins, so that the databases of before open.
revision = "0004"
down_revision = None


def upgrade() -> None:
    """Create the tables of human studies."""
    op.create_table(
        "project",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(80), nullable=False, unique=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("seed", sa.Integer, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("protocol", sa.Text),
        sa.Column("origin", sa.JSON),
    )
    op.create_table(
        "item",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("project_id", sa.Integer, sa.ForeignKey("project.id"), nullable=False, index=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("picture", sa.LargeBinary),
        sa.Column("role", sa.String(20), nullable=False, server_default=""),
        sa.UniqueConstraint("project_id", "number"),
    )
    op.create_table(
        "explanation",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("item_id", sa.Integer, sa.ForeignKey("item.id"), nullable=False, index=True),
        sa.Column("method", sa.String(200), nullable=False),
        sa.Column("attribution", sa.JSON, nullable=False),
        sa.UniqueConstraint("item_id", "method"),
    )
    op.create_table(
        "annotator",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("project_id", sa.Integer, sa.ForeignKey("project.id"), nullable=False, index=True),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("token_digest", sa.String(64), unique=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("joined", sa.DateTime),
        sa.Column("revoked", sa.DateTime),
        sa.Column("person", sa.String(200)),
        sa.Column("source", sa.JSON),
        sa.Column("slot", sa.Integer),
        sa.Column("items", sa.JSON),
        sa.Column("status", sa.String(20), nullable=False, server_default=""),
        sa.Column("ended", sa.DateTime),
    )
    op.create_index("uq_annotator_person", "annotator", ["project_id", "person"], unique=True)
    op.create_table(
        "answer",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("annotator_id", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False, index=True),
        sa.Column("item_id", sa.Integer, sa.ForeignKey("item.id"), nullable=False, index=True),
        sa.Column("phase", sa.String(20), nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("updated", sa.DateTime, nullable=False),
        sa.UniqueConstraint("annotator_id", "item_id", "phase"),
    )
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
    op.create_table(
        "replaced_token",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("annotator_id", sa.Integer, sa.ForeignKey("annotator.id"), nullable=False, index=True),
        sa.Column("replaced", sa.DateTime, nullable=False),
    )
