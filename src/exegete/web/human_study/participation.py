"""Who took part in a study, what each did, and whose answers the analysis leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from exegete.web.human_study.analysis.quality import AnnotatorWork, Quality, assess_quality
from exegete.web.human_study.kinds import KINDS
from exegete.web.human_study.protocol.admission import COMPLETE
from exegete.web.human_study.protocol.file import Protocol, parse_protocol
from exegete.web.human_study.protocol.known_answers import has_passed
from exegete.web.human_study.tables import Annotator, AnnotatorAnswer, Project


class Participation(NamedTuple):
    """A person of a study by a protocol, and the quality of what they did."""

    person: Annotator
    quality: Quality

    @property
    def is_included(self) -> bool:
        """Whether the analysis takes this person's answers: complete, and nothing flagged."""
        return self.person.status == COMPLETE and not self.quality.is_careless


def load_participations(session: Session, project: Project) -> list[Participation]:
    """Everybody who takes part in a study. Without a protocol nobody is judged, and the list is empty."""
    if project.protocol is None:
        return []
    plan = parse_protocol(project.protocol)
    query = select(Annotator).where(Annotator.project_id == project.id).order_by(Annotator.id)
    found = session.scalars(
        query.options(selectinload(Annotator.answers).selectinload(AnnotatorAnswer.item), selectinload(Annotator.steps))
    )
    people = list(found)
    works = [_collect_work(project, person) for person in people]
    qualities = assess_quality(works, fastest=plan.attention.fastest, missed=plan.attention.allowed)
    return [Participation(person, quality) for person, quality in zip(people, qualities, strict=True)]


def find_excluded(session: Session, project: Project) -> list[int]:
    """The ids of those whose answers the analysis leaves out."""
    return [each.person.id for each in load_participations(session, project) if not each.is_included]


def count_by_status(people: Sequence[Participation]) -> dict[str, int]:
    """How many people there are of each status, and `flagged` of the complete ones."""
    found = Counter(each.person.status or "under way" for each in people)
    flagged = sum(each.person.status == COMPLETE and each.quality.is_careless for each in people)
    return dict(found) | {"flagged": flagged}


def make_row(each: Participation, plan: Protocol) -> dict[str, Any]:
    """A person as a row: who, how it went, what they said to questions; of scales the mean, turned where it counts."""
    person, quality = each
    said = {step.name: step.content for step in person.steps}
    told = said.get("screening", {}) | said.get("questionnaire", {})
    answers: dict[str, Any] = {}
    for question in (*plan.screening, *plan.questionnaire):
        given = told.get(question.name)
        if question.kind == "scale" and given is not None:
            turned = [
                question.points + 1 - value if n in question.reverse else value for n, value in enumerate(given, 1)
            ]
            answers |= {f"{question.name}_{number}": value for number, value in enumerate(given, 1)}
            given = fmean(turned)
        answers[question.name] = given
    tries = [step for step in person.steps if step.name == "comprehension"]
    return {
        "annotator": person.name,
        "status": person.status or "under way",
        "included": each.is_included,
        **{name: (person.source or {}).get(name) for name in sorted(person.source or {})},
        "began": person.created,
        "ended": person.ended,
        "attempts": len(tries),
        "median_seconds": quality.seconds,
        "checks_missed": quality.missed,
        "checks": quality.checks,
        "flags": ", ".join(quality.flags),
        **answers,
    }


def _collect_work(project: Project, person: Annotator) -> AnnotatorWork:
    last = KINDS[project.kind].phases[-1]
    main = [answer for answer in person.answers if answer.item.role == ""]
    seconds: dict[int, float] = {}
    for answer in main:
        if answer.seconds is not None:
            seconds[answer.item_id] = seconds.get(answer.item_id, 0.0) + answer.seconds
    checks = [answer for answer in person.answers if answer.item.role == "check" and answer.phase == last]
    right = [has_passed(project.kind, answer.item, answer.content) for answer in checks]
    given = (
        [_get_displayed_answer(answer.content) for answer in main if answer.phase == last]
        if project.kind != "highlight"
        else []
    )
    return AnnotatorWork(person.name, list(seconds.values()), given, right)


def _get_displayed_answer(content: Mapping[str, Any]) -> Hashable:
    """An answer as it stood on the page."""
    if "ranks" in content:
        return tuple(content["ranks"][method] for method in content["order"])
    return str(content["guess"])
