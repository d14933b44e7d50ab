"""Results of a human study: ratings, agreement, simulation gain, plausibility; and the answers themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from exegete.data.marked import MarkedExample
from exegete.web.human_study.analysis.agreement import krippendorff
from exegete.web.human_study.analysis.evidence import Plausible, agreement, marked_units, plausible
from exegete.web.human_study.analysis.pairs import Strength, strengths
from exegete.web.human_study.analysis.ranking import Ballot, Rating, concordance, mean_concordance, ratings
from exegete.web.human_study.analysis.simulation import Guess, Help, helped
from exegete.web.human_study.cases import restored
from exegete.web.human_study.kinds import AFTER, BEFORE, KINDS
from exegete.web.human_study.protocol.file import main_of
from exegete.web.human_study.tables import Annotator, Answer, Item, Project

NAN = float("nan")


@dataclass(frozen=True)
class Findings:
    """A project's results; what its kind does not have is empty or NaN.

    `w_examples`: mean of Kendall's W over `n_examples` examples that several people ranked; `w_people`: W of the
    people's mean ranks of each method; `f1`: agreement of marks; `alpha`: Krippendorff's α of ranks (ordinal), second
    guesses or marked units (nominal).
    """

    answers: int
    ratings: Sequence[Rating] = ()
    w_examples: float = NAN
    n_examples: int = 0
    w_people: float = NAN
    help: Sequence[Help] = ()
    plausible: Sequence[Plausible] = ()
    f1: float = NAN
    alpha: float = NAN
    strengths: Sequence[Strength] = ()
    guesses: Sequence[Guess] = field(default=(), repr=False)


def answers_of(session: Session, project: Project, left_out: Collection[int] = ()) -> list[Answer]:
    """All answers but those of people who are left out, by example, annotator and phase, whoever was first."""
    query = (
        select(Answer)
        .join(Item)
        .join(Annotator, Answer.annotator_id == Annotator.id)
        .where(Item.project_id == project.id, Item.role == "", Annotator.id.not_in(left_out))
        .options(selectinload(Answer.item), selectinload(Answer.annotator))
        .order_by(Item.number, Answer.annotator_id, Answer.phase)
    )
    return list(session.scalars(query))


def findings(session: Session, project: Project, left_out: Collection[int] = ()) -> Findings:
    """The results of a study's answers so far, by its kind, without those of people who are left out."""
    answers = answers_of(session, project, left_out)
    if project.kind == "rank":
        return _ranked(answers)
    if KINDS[project.kind].guesses:
        found = guesses(answers)
        return Findings(len(answers), help=helped(found, project.seed), guesses=found, alpha=_alpha_of_guesses(answers))
    examples = marked_examples(session, project, left_out)
    explained = [{each.method: restored(each) for each in item.explanations} for item in project.items]
    unit = main_of(project.protocol).unit
    alpha = krippendorff(column for each in examples if each.marks for column in _columns(each, unit))
    return Findings(len(answers), plausible=plausible(examples, explained), f1=agreement(examples, unit), alpha=alpha)


def guesses(answers: Sequence[Answer]) -> list[Guess]:
    """People's guesses on the examples where both were made."""
    first = {(a.annotator_id, a.item_id): a.content["guess"] for a in answers if a.phase == BEFORE}
    return [
        Guess(
            answer.item.number,
            answer.content["method"],
            first[place] == answer.item.answer,
            answer.content["guess"] == answer.item.answer,
        )
        for answer in answers
        if answer.phase == AFTER and (place := (answer.annotator_id, answer.item_id)) in first
    ]


def widest(session: Session, project: Project) -> float:
    """The width of the widest 95 % interval of a study's results; infinite where one is unknown."""
    found = findings(session, project)
    rows = found.strengths if project.kind == "rank" else found.help
    widths = [row.high - row.low for row in rows]
    return float("inf") if not widths or np.isnan(widths).any() else max(widths)


def marked_examples(session: Session, project: Project, left_out: Collection[int] = ()) -> list[MarkedExample]:
    """The project's texts with what every annotator marked."""
    marks: dict[int, dict[str, tuple[tuple[int, int, int], ...]]] = {}
    names = dict(session.execute(select(Annotator.id, Annotator.name).where(Annotator.project_id == project.id)).all())
    if project.kind == "highlight":
        for answer in answers_of(session, project, left_out):
            mine = tuple((side, start, end) for side, start, end in answer.content["marks"])
            marks.setdefault(answer.item_id, {})[names[answer.annotator_id]] = mine
    return [
        MarkedExample(tuple(item.content["texts"]), item.content["label"], marks.get(item.id, {}))
        for item in project.items
        if item.content["texts"]
    ]


def _ranked(answers: Sequence[Answer]) -> Findings:
    ballots = [(answer.item.number, answer.content["ranks"]) for answer in answers]
    if not ballots:
        return Findings(0)
    w, count = mean_concordance(ballots)
    ranked = [ballot for _, ballot in ballots]
    return Findings(
        len(answers),
        ratings(ranked),
        w,
        count,
        concordance(_by_person(answers)),
        alpha=_alpha_of_ranks(ballots),
        strengths=strengths(ranked, [answer.annotator_id for answer in answers]),
    )


def _alpha_of_ranks(ballots: Sequence[tuple[int, Ballot]]) -> float:
    units: dict[tuple[int, str], list[int]] = {}
    for example, ballot in ballots:
        for method, rank in ballot.items():
            units.setdefault((example, method), []).append(rank)
    return krippendorff(units.values(), "ordinal")


def _alpha_of_guesses(answers: Sequence[Answer]) -> float:
    units: dict[int, list[str]] = {}
    for answer in answers:
        if answer.phase == AFTER:
            units.setdefault(answer.item_id, []).append(answer.content["guess"])
    return krippendorff(units.values())


def _columns(example: MarkedExample, unit: str) -> list[list[bool]]:
    """For each word or sentence, whether each person marked it."""
    rows = [marked_units(example, marks, unit).tolist() for marks in example.marks.values()]
    return [list(column) for column in zip(*rows, strict=True)]


def _by_person(answers: Sequence[Answer]) -> list[Ballot]:
    """Each person's mean ranks as a ranking."""
    people: dict[int, list[Ballot]] = {}
    for answer in answers:
        people.setdefault(answer.annotator_id, []).append(answer.content["ranks"])
    found: list[Ballot] = []
    for ballots in people.values():
        names = {name for ballot in ballots for name in ballot}
        mean = {name: float(np.mean([ballot[name] for ballot in ballots if name in ballot])) for name in names}
        order = sorted(set(mean.values()))
        found.append({name: 1 + order.index(value) for name, value in mean.items()})
    return found
