"""The database tables of a human study."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


def utc_now() -> datetime:
    """The time, without a zone: UTC."""
    return datetime.now(UTC).replace(tzinfo=None)


class Base(DeclarativeBase):
    """All tables of a study; a change to one needs a revision in `migrations/versions`."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class Project(Base):
    """A study: examples, how each is explained, and what people are asked.

    `protocol`: the text of its file, where it has one; `origin`: what it was made of, see `origin.py`. `items` are the
    examples that are studied, `known` those with a known answer, for training and for checks.
    """

    __tablename__ = "project"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    kind: Mapped[str] = mapped_column(String(20))
    question: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(Integer, default=0)
    labels: Mapped[list[str]] = mapped_column(JSON, default=list)
    created: Mapped[datetime] = mapped_column(DateTime, default=utc_now)
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


class Item(Base):
    """An example. `content` has its texts, label and prediction; `picture` is a PNG; `role`: "", training or check."""

    __tablename__ = "item"
    __table_args__ = (UniqueConstraint("project_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"), index=True)
    number: Mapped[int] = mapped_column(Integer)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    picture: Mapped[bytes | None] = mapped_column(LargeBinary)
    role: Mapped[str] = mapped_column(String(20), default="", server_default="")
    project: Mapped[Project] = relationship(back_populates="items")
    explanations: Mapped[list[StoredExplanation]] = relationship(order_by="StoredExplanation.id")

    @property
    def model_answer(self) -> str | None:
        """The model's answer that people guess: that to the changed version, where there is one."""
        answer: str | None = (self.content.get("changed") or self.content)["prediction"]
        return answer


class StoredExplanation(Base):
    """An example as one method explains it: an `Attribution` as plain values."""

    __tablename__ = "explanation"
    __table_args__ = (UniqueConstraint("item_id", "method"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"), index=True)
    method: Mapped[str] = mapped_column(String(200))
    attribution: Mapped[dict[str, Any]] = mapped_column(JSON)


class Annotator(Base):
    """Somebody who was invited, or came by a platform's link. Of a token only a digest is kept.

    Of whoever takes part by a protocol: `person`, who that is on the platform; `source`, what the link brought; `slot`,
    the place in the counterbalancing; `items`, the examples in order; `status`, how it ended.
    """

    __tablename__ = "annotator"
    __table_args__ = (Index("uq_annotator_person", "project_id", "person", unique=True),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"), index=True)
    name: Mapped[str] = mapped_column(String(80))
    token_digest: Mapped[str | None] = mapped_column(String(64), unique=True)
    created: Mapped[datetime] = mapped_column(DateTime, default=utc_now)
    joined: Mapped[datetime | None] = mapped_column(DateTime)
    revoked: Mapped[datetime | None] = mapped_column(DateTime)
    person: Mapped[str | None] = mapped_column(String(200))
    source: Mapped[dict[str, str] | None] = mapped_column(JSON)
    slot: Mapped[int | None] = mapped_column(Integer)
    items: Mapped[list[int] | None] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(20), default="", server_default="")
    ended: Mapped[datetime | None] = mapped_column(DateTime)
    project: Mapped[Project] = relationship(back_populates="annotators")
    answers: Mapped[list[AnnotatorAnswer]] = relationship(back_populates="annotator", order_by="AnnotatorAnswer.id")
    steps: Mapped[list[AnnotatorStep]] = relationship(order_by="AnnotatorStep.id")


class AnnotatorStep(Base):
    """An annotator's answers outside the examples: consent, questions; one row an attempt."""

    __tablename__ = "step"
    __table_args__ = (UniqueConstraint("annotator_id", "name", "attempt"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotator.id"), index=True)
    name: Mapped[str] = mapped_column(String(40))
    attempt: Mapped[int] = mapped_column(Integer, default=1)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    seconds: Mapped[float | None] = mapped_column(Float)
    created: Mapped[datetime] = mapped_column(DateTime, default=utc_now)


class AnnotatorAnswer(Base):
    """An annotator's answer on an example in one phase; a later one replaces it."""

    __tablename__ = "answer"
    __table_args__ = (UniqueConstraint("annotator_id", "item_id", "phase"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotator.id"), index=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"), index=True)
    phase: Mapped[str] = mapped_column(String(20))
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    seconds: Mapped[float | None] = mapped_column(Float)
    revision: Mapped[int] = mapped_column(Integer, default=1)
    created: Mapped[datetime] = mapped_column(DateTime, default=utc_now)
    updated: Mapped[datetime] = mapped_column(DateTime, default=utc_now)
    annotator: Mapped[Annotator] = relationship(back_populates="answers")
    item: Mapped[Item] = relationship()
