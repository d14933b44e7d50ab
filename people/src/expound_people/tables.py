"""The database tables of human studies."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

# Alembic can drop a constraint only by its name, so every constraint gets one.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


def is_storable(text: str) -> bool:
    """Return whether databases can store a text: PostgreSQL refuses NUL, and UTF-8 has no halves of surrogate pairs."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def utc_now() -> datetime:
    """Return the current time in UTC, without a time zone."""
    # SQLite stores no time zone, so an aware time would come back naive and could not be compared with a new one.
    return datetime.now(UTC).replace(tzinfo=None)


class Base(DeclarativeBase):
    """The base of all tables of human studies; a change to a table needs a revision in `migrations/versions`."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class Project(Base):
    """A study: its examples with their explanations, the question, and its annotators.

    `protocol`: the text of the protocol file, if any; `origin`: models and data, see `origin.py`; `items`: the examples
    that are studied; `known`: examples with a known answer, for training and attention checks.
    """

    __tablename__ = "project"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    kind: Mapped[str] = mapped_column(String(20))
    question: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(default=0)
    labels: Mapped[list[str]] = mapped_column(JSON, default=list)
    created: Mapped[datetime] = mapped_column(default=utc_now)
    protocol: Mapped[str | None] = mapped_column(Text)
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    items: Mapped[list[Item]] = relationship(
        primaryjoin="and_(Item.project_id == Project.id, Item.role == '')",
        back_populates="project",
        order_by="Item.number",
    )
    known: Mapped[list[Item]] = relationship(
        primaryjoin="and_(Item.project_id == Project.id, Item.role != '')", viewonly=True, order_by="Item.number"
    )
    annotators: Mapped[list[Annotator]] = relationship(back_populates="project", order_by="Annotator.id")

    @property
    def methods(self) -> list[str]:
        """The methods whose explanations are studied, sorted; all examples have the same."""
        if not self.items:
            return []
        return sorted({stored.method for stored in self.items[0].explanations})


class Item(Base):
    """A stored example.

    `content`: its texts, label and prediction; `picture`: a PNG; `role`: training, check, or "" for a studied example.
    """

    __tablename__ = "item"
    __table_args__ = (UniqueConstraint("project_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"), index=True)
    number: Mapped[int]
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    picture: Mapped[bytes | None]
    role: Mapped[str] = mapped_column(String(20), default="", server_default="")
    project: Mapped[Project] = relationship(back_populates="items")
    explanations: Mapped[list[StoredExplanation]] = relationship(order_by="StoredExplanation.id")

    @property
    def model_answer(self) -> str | None:
        """Return the model's answer that annotators predict: to the changed version if any, else to the item."""
        answer: str | None = (self.content.get("changed") or self.content)["prediction"]
        return answer


class StoredExplanation(Base):
    """One method's explanation of an example: an `Explanation` as plain values."""

    __tablename__ = "explanation"
    __table_args__ = (UniqueConstraint("item_id", "method"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"), index=True)
    method: Mapped[str] = mapped_column(String(200))
    attribution: Mapped[dict[str, Any]] = mapped_column(JSON)


class Annotator(Base):
    """An annotator who was invited, imported, or came by a platform's link.

    Studies with a protocol also store: `person`, the platform's id; `source`, the parameters of the link; `slot`, the
    number in the counterbalancing; `items`, the ids of the examples in order; `status`, how participation ended.
    """

    __tablename__ = "annotator"
    # Unique, so that two requests of the same person at the same time cannot both be admitted.
    __table_args__ = (Index("uq_annotator_person", "project_id", "person", unique=True),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"), index=True)
    name: Mapped[str] = mapped_column(String(80))
    # Only a digest is stored: who reads the database, or a backup of it, cannot sign in as an annotator.
    token_digest: Mapped[str | None] = mapped_column(String(64), unique=True)
    created: Mapped[datetime] = mapped_column(default=utc_now)
    joined: Mapped[datetime | None]
    revoked: Mapped[datetime | None]
    person: Mapped[str | None] = mapped_column(String(200))
    source: Mapped[dict[str, str] | None] = mapped_column(JSON)
    slot: Mapped[int | None]
    items: Mapped[list[int] | None] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(20), default="", server_default="")
    ended: Mapped[datetime | None]
    project: Mapped[Project] = relationship(back_populates="annotators")
    answers: Mapped[list[AnnotatorAnswer]] = relationship(back_populates="annotator", order_by="AnnotatorAnswer.id")
    steps: Mapped[list[AnnotatorStep]] = relationship(order_by="AnnotatorStep.id")


class ReplacedToken(Base):
    """A token that was replaced by a newer one of the same annotator, and is valid for a moment longer."""

    __tablename__ = "replaced_token"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotator.id"), index=True)
    replaced: Mapped[datetime] = mapped_column(default=utc_now)


class AnnotatorStep(Base):
    """One attempt of an annotator at a step outside the examples: consent, questions, comprehension check."""

    __tablename__ = "step"
    # Makes saving idempotent: a form that is sent twice violates the constraint instead of counting as two attempts.
    __table_args__ = (UniqueConstraint("annotator_id", "name", "attempt"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotator.id"), index=True)
    name: Mapped[str] = mapped_column(String(40))
    attempt: Mapped[int] = mapped_column(default=1)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    seconds: Mapped[float | None]
    created: Mapped[datetime] = mapped_column(default=utc_now)


class AnnotatorAnswer(Base):
    """An annotator's answer about an example in one phase; `revision` counts how often it was replaced."""

    __tablename__ = "answer"
    __table_args__ = (UniqueConstraint("annotator_id", "item_id", "phase"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotator.id"), index=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"), index=True)
    phase: Mapped[str] = mapped_column(String(20))
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    seconds: Mapped[float | None]
    revision: Mapped[int] = mapped_column(default=1)
    created: Mapped[datetime] = mapped_column(default=utc_now)
    updated: Mapped[datetime] = mapped_column(default=utc_now)
    annotator: Mapped[Annotator] = relationship(back_populates="answers")
    item: Mapped[Item] = relationship()
