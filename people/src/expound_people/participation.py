"""Participation in a study: what each annotator did, and whose answers the analysis excludes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from statistics import fmean
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session, selectinload

from expound_people.analysis.quality import AnnotatorWork, Quality, assess_quality
from expound_people.kinds import KINDS
from expound_people.protocol.admission import COMPLETE
from expound_people.protocol.file import Protocol, parse_protocol
from expound_people.protocol.known_answers import has_passed
from expound_people.tables import Annotator, AnnotatorAnswer, Project


class Participation(NamedTuple):
    """An annotator of a study with a protocol, and the quality of the answers."""

    person: Annotator
    quality: Quality

    @property
    def is_included(self) -> bool:
        """Return whether the analysis includes this annotator: complete and without a flag."""
        return self.person.status == COMPLETE and not self.quality.is_careless


def load_participations(session: Session, project: Project) -> list[Participation]:
    """Load all annotators of a study and assess their quality; an empty list without a protocol."""
    if project.protocol is None:
        return []
    attention = parse_protocol(project.protocol).attention
    query = select(Annotator).where(Annotator.project_id == project.id).order_by(Annotator.id)
    # Loaded with one query per relationship; lazy loading would take one query per answer.
    people = session.scalars(
        query.options(selectinload(Annotator.answers).selectinload(AnnotatorAnswer.item), selectinload(Annotator.steps))
    ).all()
    works = [_collect_work(project, person) for person in people]
    qualities = assess_quality(works, fastest=attention.fastest, missed=attention.allowed)
    return [Participation(person, quality) for person, quality in zip(people, qualities, strict=True)]


def find_excluded(session: Session, project: Project) -> list[int]:
    """Return the ids of the annotators whose answers the analysis excludes."""
    return [entry.person.id for entry in load_participations(session, project) if not entry.is_included]


def count_people(session: Session, project: Project) -> dict[str, int]:
    """Count annotators by status, and as `flagged` the complete ones with a flag; without a protocol by progress."""
    if project.protocol is None:
        answers = select(func.count()).where(AnnotatorAnswer.annotator_id == Annotator.id).scalar_subquery()
        counts = session.scalars(select(answers).where(Annotator.project_id == project.id)).all()
        expected = len(project.items) * len(KINDS[project.kind].phases)
        began, finished = sum(count > 0 for count in counts), sum(0 < expected <= count for count in counts)
        return {"invited": len(counts), "began": began, "finished": finished}
    people = load_participations(session, project)
    statuses = dict(Counter(entry.person.status or "under way" for entry in people))
    flagged = sum(entry.person.status == COMPLETE and entry.quality.is_careless for entry in people)
    return statuses | {"flagged": flagged}


def make_row(entry: Participation, plan: Protocol) -> dict[str, Any]:
    """Return an annotator as a row of the export: status, quality, and answers to the protocol's questions."""
    person, quality = entry
    source = person.source or {}
    return {
        "annotator": person.name,
        "status": person.status or "under way",
        "included": entry.is_included,
        **{name: source[name] for name in sorted(source)},
        "began": person.created,
        "ended": person.ended,
        "attempts": sum(step.name == "comprehension" for step in person.steps),
        "median_seconds": quality.seconds,
        "checks_missed": quality.missed,
        "checks": quality.checks,
        "flags": ", ".join(quality.flags),
        **_collect_question_answers(person, plan),
    }


def _collect_question_answers(person: Annotator, plan: Protocol) -> dict[str, Any]:
    """Return the answers by question; a scale has its mean, and one value for each statement."""
    steps = {step.name: step.content for step in person.steps}
    contents = steps.get("screening", {}) | steps.get("questionnaire", {})
    answers: dict[str, Any] = {}
    for question in (*plan.screening, *plan.questionnaire):
        answer = contents.get(question.name)
        if question.kind == "scale" and answer is not None:
            values = []
            for number, value in enumerate(answer, 1):
                answers[f"{question.name}_{number}"] = value
                # Reversed statements are turned round in the mean only; single values are exported as they were given.
                values.append(question.points + 1 - value if number in question.reverse else value)
            answer = fmean(values)
        answers[question.name] = answer
    return answers


def _collect_work(project: Project, person: Annotator) -> AnnotatorWork:
    last = KINDS[project.kind].phases[-1]
    seconds: dict[int, float] = {}
    displayed: list[Hashable] = []
    checks = []
    for answer in person.answers:
        role = answer.item.role
        # Phases of one example add up: a fast second guess after a slow first one is not careless.
        if role == "" and answer.seconds is not None:
            seconds[answer.item_id] = seconds.get(answer.item_id, 0.0) + answer.seconds
        # Marks are never compared: marking nothing several times can be right.
        if role == "" and answer.phase == last and "ranks" in answer.content:
            displayed.append(tuple(answer.content["ranks"][method] for method in answer.content["order"]))
        elif role == "" and answer.phase == last and "guess" in answer.content:
            displayed.append(answer.content["guess"])
        if role == "check" and answer.phase == last:
            checks.append(has_passed(project.kind, answer.item, answer.content))
    return AnnotatorWork(person.name, list(seconds.values()), displayed, checks)
