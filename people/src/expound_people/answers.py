"""An annotator's progress through a project: the next example, earlier answers, and saving new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from expound.errors import ExpoundError
from expound_people.blinding import BlindExplanation, assign_method, blind_explanations, draw_item_order
from expound_people.blocks import BlockDesign
from expound_people.items import restore_explanation
from expound_people.kinds import AFTER, BEFORE, KINDS, AnnotationTask, StudyKind
from expound_people.protocol.file import (
    MainPart,
    Protocol,
    digest_protocol,
    get_main_part,
    get_text_prefix,
    parse_protocol,
)
from expound_people.tables import Annotator, AnnotatorAnswer, Item, Project, utc_now

MAX_SECONDS = 24 * 3600.0
"""Longer times on an example are discarded: the page was left open, or the form is forged."""


@dataclass(frozen=True)
class AnnotatorProgress:
    """An annotator's progress in a project.

    `items`: ids of the examples in this annotator's order; `answered_phases`: of each example; `role`: "" for the main
    part, training for the examples before it. Places count from 1.
    """

    annotator: Annotator
    project: Project
    items: Sequence[int]
    answered_phases: Mapping[int, frozenset[str]]
    role: str = ""

    @property
    def protocol(self) -> Protocol | None:
        """Return the project's protocol; None if it has none."""
        return None if self.project.protocol is None else parse_protocol(self.project.protocol)

    @property
    def digest(self) -> str:
        """Return the SHA-256 digest of the protocol."""
        return digest_protocol(self.project.protocol or "")

    @property
    def title(self) -> str:
        """Return the study's title on annotators' pages."""
        return self.project.name if self.protocol is None else self.protocol.title

    @property
    def language(self) -> str:
        """Return the language of annotators' pages."""
        return "en" if self.protocol is None else self.protocol.language

    @property
    def main(self) -> MainPart:
        """Return the protocol's main part, which says how examples are shown and what is asked."""
        return get_main_part(self.project.protocol)

    @property
    def text_prefix(self) -> str:
        """Return the prefix of the default instructions' key in the catalog."""
        return get_text_prefix(self.project.kind, self.main.unit)

    @property
    def kind(self) -> StudyKind:
        """Return the kind of study."""
        return KINDS[self.project.kind]

    def is_complete(self, place: int) -> bool:
        """Return whether all phases of the example at a place are answered."""
        return set(self.kind.phases) <= self.answered_phases.get(self.items[place - 1], frozenset())

    @property
    def n_complete(self) -> int:
        """Return the number of complete examples."""
        return sum(self.is_complete(place) for place in range(1, len(self.items) + 1))

    def next_phase(self, place: int) -> str:
        """Return the first unanswered phase of the example at a place, else the last phase."""
        answered = self.answered_phases.get(self.items[place - 1], frozenset())
        return next((phase for phase in self.kind.phases if phase not in answered), self.kind.phases[-1])

    def next_place(self, after: int = 0) -> int | None:
        """Return the first incomplete place after `after`, else the first incomplete one; None if all are complete."""
        incomplete = [place for place in range(1, len(self.items) + 1) if not self.is_complete(place)]
        later = [place for place in incomplete if place > after]
        return next(iter(later + incomplete), None)


def load_progress(session: Session, annotator: Annotator, role: str = "") -> AnnotatorProgress:
    """Load an annotator's progress in the main part, or in the examples of a role."""
    project = session.get_one(Project, annotator.project_id)
    query = select(Item.id).where(Item.project_id == project.id, Item.role == role).order_by(Item.number)
    items = list(session.scalars(query))
    # With a protocol the order was drawn and stored at admission; otherwise it is drawn again from the same seed.
    if not role and annotator.items is not None:
        items = annotator.items
    elif not role:
        order = draw_item_order(len(items), seed=project.seed, annotator=annotator.id)
        items = [items[number] for number in order]
    answered: dict[int, frozenset[str]] = {}
    phases = select(AnnotatorAnswer.item_id, AnnotatorAnswer.phase).where(AnnotatorAnswer.annotator_id == annotator.id)
    for item, phase in session.execute(phases):
        answered[item] = answered.get(item, frozenset()) | {phase}
    return AnnotatorProgress(annotator, project, items, answered, role)


def get_item(session: Session, progress: AnnotatorProgress, place: int) -> Item:
    """Return the example at a place. Raises ExpoundError for a place outside the study."""
    if not 1 <= place <= len(progress.items):
        raise ExpoundError(f"expected an example from 1 to {len(progress.items)}, got {place}")
    return session.get_one(Item, progress.items[place - 1])


def make_task(progress: AnnotatorProgress, item: Item, phase: str) -> AnnotationTask:
    """Return what the annotator is shown and asked about an example in a phase."""
    content = item.content
    explanations: list[BlindExplanation] = []
    # The explanation must not be sent before the first guess, not even hidden in the page.
    if phase != BEFORE and progress.kind.min_methods > 0:
        explanations = _select_explanations(progress, item, phase)
    return AnnotationTask(
        tuple(content["texts"]),
        item.picture is not None,
        explanations,
        progress.project.labels,
        content["prediction"],
        content.get("changed"),
        progress.main.unit,
    )


def _select_explanations(progress: AnnotatorProgress, item: Item, phase: str) -> list[BlindExplanation]:
    """Return the blinded explanations on this annotator's screen, which the counterbalancing decides."""
    annotator = progress.annotator
    by_method = {stored.method: restore_explanation(stored) for stored in item.explanations}
    # Slots of people who leave are given to others, which keeps the design balanced; ids would leave gaps.
    person = annotator.id if annotator.slot is None else annotator.slot
    methods = sorted(by_method)
    numbers = BlockDesign.for_methods(len(methods), progress.main.screen).get_methods(person, item.number)
    if phase == AFTER:
        numbers = [assign_method(len(methods), annotator=person, number=item.number)]
    selected = {methods[number]: by_method[methods[number]] for number in numbers}
    seed, show = progress.project.seed, progress.main.show
    return blind_explanations(selected, seed=seed, annotator=annotator.id, number=item.number, show=show)


def find_answer(session: Session, progress: AnnotatorProgress, item: Item, phase: str) -> AnnotatorAnswer | None:
    """Return the annotator's stored answer about an example in a phase; None if there is none."""
    query = select(AnnotatorAnswer).where(
        AnnotatorAnswer.annotator_id == progress.annotator.id,
        AnnotatorAnswer.item_id == item.id,
        AnnotatorAnswer.phase == phase,
    )
    return session.scalar(query)


def save_answer(
    session: Session,
    progress: AnnotatorProgress,
    item: Item,
    phase: str,
    content: Mapping[str, Any],
    seconds: float | None,
) -> None:
    """Save an answer: at most one is stored per annotator, example and phase, even if a form is sent twice.

    A later answer replaces an earlier one, except in final phases and outside the main part.
    """
    # A second try, because a parallel request can insert the same answer between our query and our insert. The unique
    # constraint then makes ours fail, and the next round finds that answer and replaces it.
    for _ in range(2):
        stored = find_answer(session, progress, item, phase)
        if stored is not None:
            if phase not in progress.kind.final_phases and not item.role:
                stored.content, stored.updated, stored.revision = dict(content), utc_now(), stored.revision + 1
            return
        added = AnnotatorAnswer(annotator_id=progress.annotator.id, item_id=item.id, phase=phase, content=dict(content))
        # Seconds are measured by the browser, so they are only as trustworthy as the annotator.
        if seconds is not None and 0 <= seconds <= MAX_SECONDS:
            added.seconds = seconds
        try:
            # A savepoint: a failed insert would otherwise abort the whole transaction on PostgreSQL.
            with session.begin_nested():
                session.add(added)
            return
        except IntegrityError:
            continue
    raise ExpoundError("the answer could not be saved: send it again")
