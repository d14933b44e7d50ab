"""An annotator's progress through a project: what comes next, what was said, and keeping it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from exegete.errors import ExegeteError
from exegete.web.human_study.blinding import BlindExplanation, assign_method, blind_explanations, draw_item_order
from exegete.web.human_study.blocks import BlockDesign
from exegete.web.human_study.items import restore_explanation
from exegete.web.human_study.kinds import AFTER, BEFORE, KINDS, AnnotationTask, StudyKind
from exegete.web.human_study.protocol.file import (
    MainPart,
    Protocol,
    digest_protocol,
    get_main_part,
    get_text_prefix,
    parse_protocol,
)
from exegete.web.human_study.tables import Annotator, AnnotatorAnswer, Item, Project, utc_now

MAX_SECONDS = 24 * 3600.0
"""Seconds on an example above which the clock is not believed."""


@dataclass(frozen=True)
class AnnotatorProgress:
    """An annotator in a project: the examples in this annotator's order, and the phases answered of each.

    `role`: "" for the main part, training for the examples before it.
    """

    annotator: Annotator
    project: Project
    items: Sequence[int]
    answered_phases: Mapping[int, frozenset[str]]
    role: str = ""

    @property
    def protocol(self) -> Protocol | None:
        """The project's protocol, where it has one."""
        return None if self.project.protocol is None else parse_protocol(self.project.protocol)

    @property
    def digest(self) -> str:
        """The protocol's digest."""
        return digest_protocol(self.project.protocol or "")

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
        return get_main_part(self.project.protocol)

    @property
    def text_prefix(self) -> str:
        """What the catalogue calls the usual instructions."""
        return get_text_prefix(self.project.kind, self.main.unit)

    @property
    def kind(self) -> StudyKind:
        """The kind of study, which decides the questions asked."""
        return KINDS[self.project.kind]

    def is_complete(self, place: int) -> bool:
        """Whether everything is said about the example at a place (from 1)."""
        return set(self.kind.phases) <= self.answered_phases.get(self.items[place - 1], frozenset())

    @property
    def n_complete(self) -> int:
        """How many examples are complete."""
        return sum(self.is_complete(place) for place in range(1, len(self.items) + 1))

    def next_phase(self, place: int) -> str:
        """The phase to ask next; the last one where all are answered."""
        said = self.answered_phases.get(self.items[place - 1], frozenset())
        return next((phase for phase in self.kind.phases if phase not in said), self.kind.phases[-1])

    def next_place(self, after: int = 0) -> int | None:
        """The first place behind `after` that is not complete, else the first of all; None when nothing is left."""
        places = range(1, len(self.items) + 1)
        left = [place for place in places if not self.is_complete(place)]
        return next((place for place in left if place > after), left[0] if left else None)


def load_progress(session: Session, annotator: Annotator, role: str = "") -> AnnotatorProgress:
    """The annotator's progress through the project's examples, or through those of a role."""
    project = session.get_one(Project, annotator.project_id)
    found = select(Item.id).where(Item.project_id == project.id, Item.role == role).order_by(Item.number)
    ids = list(session.scalars(found))
    items = ids
    if not role and annotator.items is not None:
        items = annotator.items
    elif not role:
        items = [ids[place] for place in draw_item_order(len(ids), seed=project.seed, annotator=annotator.id)]
    done: dict[int, set[str]] = {}
    said = select(AnnotatorAnswer.item_id, AnnotatorAnswer.phase).where(AnnotatorAnswer.annotator_id == annotator.id)
    for item, phase in session.execute(said):
        done.setdefault(item, set()).add(phase)
    return AnnotatorProgress(
        annotator, project, items, {item: frozenset(phases) for item, phases in done.items()}, role
    )


def get_item(session: Session, progress: AnnotatorProgress, place: int) -> Item:
    """The example at a place (from 1). Raises ExegeteError outside."""
    if not 1 <= place <= len(progress.items):
        raise ExegeteError(f"expected an example from 1 to {len(progress.items)}, got {place}")
    return session.get_one(Item, progress.items[place - 1])


def make_task(progress: AnnotatorProgress, item: Item, phase: str) -> AnnotationTask:
    """The content shown to the annotator for an example in a phase."""
    shown: list[BlindExplanation] = []
    if phase != BEFORE and progress.kind.min_methods:
        found = {each.method: restore_explanation(each) for each in item.explanations}
        person = progress.annotator.id if progress.annotator.slot is None else progress.annotator.slot
        names = sorted(found)
        places = BlockDesign.for_methods(len(names), progress.main.screen).get_methods(person, item.number)
        if phase == AFTER:
            places = [assign_method(len(names), annotator=person, number=item.number)]
        found = {names[place]: found[names[place]] for place in places}
        order = {"seed": progress.project.seed, "annotator": progress.annotator.id, "number": item.number}
        shown = blind_explanations(found, **order, show=progress.main.show)
    content = item.content
    picture = item.picture is not None
    changed, labels = content.get("changed"), progress.project.labels
    return AnnotationTask(
        tuple(content["texts"]), picture, shown, labels, content["prediction"], changed, progress.main.unit
    )


def find_answer(session: Session, progress: AnnotatorProgress, item: Item, phase: str) -> AnnotatorAnswer | None:
    """The annotator's earlier answer on an example in a phase; None if there is none."""
    query = select(AnnotatorAnswer).where(
        AnnotatorAnswer.annotator_id == progress.annotator.id, AnnotatorAnswer.item_id == item.id
    )
    return session.scalar(query.where(AnnotatorAnswer.phase == phase))


def save_answer(
    session: Session,
    progress: AnnotatorProgress,
    item: Item,
    phase: str,
    content: Mapping[str, Any],
    seconds: float | None,
) -> None:
    """Keeps an answer: one for each annotator, example and phase, whatever is sent twice or at once.

    A later one replaces an earlier one, but not in a phase that is final.
    """
    for _ in range(2):
        said = find_answer(session, progress, item, phase)
        if said is not None:
            if phase not in progress.kind.final_phases and not item.role:
                said.content, said.updated, said.revision = dict(content), utc_now(), said.revision + 1
            return
        fresh = AnnotatorAnswer(
            annotator_id=progress.annotator.id,
            item_id=item.id,
            phase=phase,
            content=dict(content),
            seconds=_discard_implausible(seconds),
        )
        try:
            with session.begin_nested():
                session.add(fresh)
            return
        except IntegrityError:
            continue
    raise ExegeteError("the answer could not be kept: send it again")


def _discard_implausible(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds <= MAX_SECONDS else None
