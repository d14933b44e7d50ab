"""An annotator's way through a project: what comes next, what was said, and keeping it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web.human_study.blind import Unnamed, assigned, blinded, item_order
from exegete.web.human_study.blocks import Blocks
from exegete.web.human_study.cases import restored
from exegete.web.human_study.kinds import AFTER, BEFORE, KINDS, Asked, Kind
from exegete.web.human_study.protocol.file import MainPart, Protocol, digest_of, main_of, protocol_of, wording
from exegete.web.human_study.tables import Annotator, Answer, Item, Project, now

LONGEST = 24 * 3600.0
"""Seconds on an example above which the clock is not believed."""


@dataclass(frozen=True)
class Walk:
    """An annotator in a project: the examples in this annotator's order, and the phases answered of each.

    `role`: "" for the main part, training for the examples before it.
    """

    annotator: Annotator
    project: Project
    items: Sequence[int]
    done: Mapping[int, frozenset[str]]
    role: str = ""

    @property
    def protocol(self) -> Protocol | None:
        """The project's protocol, where it has one."""
        return None if self.project.protocol is None else protocol_of(self.project.protocol)

    @property
    def digest(self) -> str:
        """The protocol's digest."""
        return digest_of(self.project.protocol or "")

    @property
    def title(self) -> str:
        """The study's title for people."""
        return self.project.name if self.protocol is None else self.protocol.title

    @property
    def language(self) -> str:
        """The language of the pages."""
        return "en" if self.protocol is None else self.protocol.language

    @property
    def main(self) -> MainPart:
        """How examples are shown, and what is asked of each."""
        return main_of(self.project.protocol)

    @property
    def wording(self) -> str:
        """What the catalogue calls the usual instructions."""
        return wording(self.project.kind, self.main.unit)

    @property
    def kind(self) -> Kind:
        """The kind of study, which decides the questions asked."""
        return KINDS[self.project.kind]

    def complete(self, place: int) -> bool:
        """Whether everything is said about the example at a place (from 1)."""
        return set(self.kind.phases) <= self.done.get(self.items[place - 1], frozenset())

    @property
    def finished(self) -> int:
        """How many examples are complete."""
        return sum(self.complete(place) for place in range(1, len(self.items) + 1))

    def phase(self, place: int) -> str:
        """The phase to ask next; the last one where all are answered."""
        said = self.done.get(self.items[place - 1], frozenset())
        return next((phase for phase in self.kind.phases if phase not in said), self.kind.phases[-1])

    def next(self, after: int = 0) -> int | None:
        """The first place behind `after` that is not complete, else the first of all; None when nothing is left."""
        places = range(1, len(self.items) + 1)
        left = [place for place in places if not self.complete(place)]
        return next((place for place in left if place > after), left[0] if left else None)


def walk(session: Session, annotator: Annotator, role: str = "") -> Walk:
    """The annotator's way through the project's examples, or through those of a role."""
    project = session.get_one(Project, annotator.project_id)
    found = select(Item.id).where(Item.project_id == project.id, Item.role == role).order_by(Item.number)
    ids = list(session.scalars(found))
    items = ids
    if not role and annotator.items is not None:
        items = annotator.items
    elif not role:
        items = [ids[place] for place in item_order(len(ids), seed=project.seed, annotator=annotator.id)]
    done: dict[int, set[str]] = {}
    said = select(Answer.item_id, Answer.phase).where(Answer.annotator_id == annotator.id)
    for item, phase in session.execute(said):
        done.setdefault(item, set()).add(phase)
    return Walk(annotator, project, items, {item: frozenset(phases) for item, phases in done.items()}, role)


def item_at(session: Session, way: Walk, place: int) -> Item:
    """The example at a place (from 1). Raises ExegeteError outside."""
    if not 1 <= place <= len(way.items):
        raise ExegeteError(f"expected an example from 1 to {len(way.items)}, got {place}")
    return session.get_one(Item, way.items[place - 1])


def asked(way: Walk, item: Item, phase: str) -> Asked:
    """The content shown to the annotator for an example in a phase."""
    shown: list[Unnamed] = []
    if phase != BEFORE and way.kind.fewest:
        found = {each.method: restored(each) for each in item.explanations}
        person = way.annotator.id if way.annotator.slot is None else way.annotator.slot
        names = sorted(found)
        places = Blocks.of(len(names), way.main.screen).shown(person, item.number)
        if phase == AFTER:
            places = [assigned(len(names), annotator=person, number=item.number)]
        found = {names[place]: found[names[place]] for place in places}
        order = {"seed": way.project.seed, "annotator": way.annotator.id, "number": item.number}
        shown = blinded(found, **order, show=way.main.show)
    content = item.content
    picture = item.picture is not None
    changed, labels = content.get("changed"), way.project.labels
    return Asked(tuple(content["texts"]), picture, shown, labels, content["prediction"], changed, way.main.unit)


def answer(session: Session, way: Walk, item: Item, phase: str) -> Answer | None:
    """The annotator's earlier answer on an example in a phase; None if there is none."""
    query = select(Answer).where(Answer.annotator_id == way.annotator.id, Answer.item_id == item.id)
    return session.scalar(query.where(Answer.phase == phase))


def keep(
    session: Session, way: Walk, item: Item, phase: str, content: Mapping[str, Any], seconds: float | None
) -> None:
    """Keeps an answer: one for each annotator, example and phase, whatever is sent twice or at once.

    A later one replaces an earlier one, but not in a phase that is final.
    """
    for _ in range(2):
        said = answer(session, way, item, phase)
        if said is not None:
            if phase not in way.kind.final and not item.role:
                said.content, said.updated, said.revision = dict(content), now(), said.revision + 1
            return
        fresh = Answer(
            annotator_id=way.annotator.id,
            item_id=item.id,
            phase=phase,
            content=dict(content),
            seconds=_believed(seconds),
        )
        try:
            with session.begin_nested():
                session.add(fresh)
            return
        except IntegrityError:
            continue
    raise ExegeteError("the answer could not be kept: send it again")


def _believed(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds <= LONGEST else None
