"""Results of a human study: ratings, agreement, simulation gain, plausibility; and the answers themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from exegete.data.marked import MarkedExample
from exegete.web.human_study.analysis.agreement import krippendorff_alpha
from exegete.web.human_study.analysis.bradley_terry import Strength, estimate_strengths
from exegete.web.human_study.analysis.plausibility import (
    Plausibility,
    evaluate_plausibility,
    find_units,
    mean_pairwise_f1,
)
from exegete.web.human_study.analysis.ranking import Ballot, Rating, kendall_w, mean_kendall_w, rate_methods
from exegete.web.human_study.analysis.simulation import Guess, SimulationGain, compute_gains
from exegete.web.human_study.items import restore_explanation
from exegete.web.human_study.kinds import AFTER, BEFORE, KINDS
from exegete.web.human_study.protocol.file import get_main_part
from exegete.web.human_study.tables import Annotator, AnnotatorAnswer, Item, Project

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
    gains: Sequence[SimulationGain] = ()
    plausibility: Sequence[Plausibility] = ()
    f1: float = NAN
    alpha: float = NAN
    strengths: Sequence[Strength] = ()
    guesses: Sequence[Guess] = field(default=(), repr=False)


def load_answers(session: Session, project: Project, left_out: Collection[int] = ()) -> list[AnnotatorAnswer]:
    """All answers but those of people who are left out, by example, annotator and phase, whoever was first."""
    query = (
        select(AnnotatorAnswer)
        .join(Item)
        .join(Annotator, AnnotatorAnswer.annotator_id == Annotator.id)
        .where(Item.project_id == project.id, Item.role == "", Annotator.id.not_in(left_out))
        .options(selectinload(AnnotatorAnswer.item), selectinload(AnnotatorAnswer.annotator))
        .order_by(Item.number, AnnotatorAnswer.annotator_id, AnnotatorAnswer.phase)
    )
    return list(session.scalars(query))


def compute_findings(session: Session, project: Project, left_out: Collection[int] = ()) -> Findings:
    """The results of a study's answers so far, by its kind, without those of people who are left out."""
    answers = load_answers(session, project, left_out)
    if project.kind == "rank":
        return _compute_rankings(answers)
    if KINDS[project.kind].is_simulation:
        found = pair_guesses(answers)
        return Findings(
            len(answers), gains=compute_gains(found, project.seed), guesses=found, alpha=_compute_guess_alpha(answers)
        )
    examples = load_marked_examples(session, project, left_out)
    explained = [{each.method: restore_explanation(each) for each in item.explanations} for item in project.items]
    unit = get_main_part(project.protocol).unit
    alpha = krippendorff_alpha(column for each in examples if each.marks for column in _transpose_marks(each, unit))
    return Findings(
        len(answers),
        plausibility=evaluate_plausibility(examples, explained),
        f1=mean_pairwise_f1(examples, unit),
        alpha=alpha,
    )


def pair_guesses(answers: Sequence[AnnotatorAnswer]) -> list[Guess]:
    """People's guesses on the examples where both were made."""
    first = {(a.annotator_id, a.item_id): a.content["guess"] for a in answers if a.phase == BEFORE}
    return [
        Guess(
            answer.item.number,
            answer.content["method"],
            first[place] == answer.item.model_answer,
            answer.content["guess"] == answer.item.model_answer,
        )
        for answer in answers
        if answer.phase == AFTER and (place := (answer.annotator_id, answer.item_id)) in first
    ]


def find_widest_interval(session: Session, project: Project) -> float:
    """The width of the widest 95 % interval of a study's results; infinite where one is unknown."""
    found = compute_findings(session, project)
    rows = found.strengths if project.kind == "rank" else found.gains
    widths = [row.high - row.low for row in rows]
    return float("inf") if not widths or np.isnan(widths).any() else max(widths)


def load_marked_examples(session: Session, project: Project, left_out: Collection[int] = ()) -> list[MarkedExample]:
    """The project's texts with what every annotator marked."""
    marks: dict[int, dict[str, tuple[tuple[int, int, int], ...]]] = {}
    names = dict(session.execute(select(Annotator.id, Annotator.name).where(Annotator.project_id == project.id)).all())
    if project.kind == "highlight":
        for answer in load_answers(session, project, left_out):
            mine = tuple((side, start, end) for side, start, end in answer.content["marks"])
            marks.setdefault(answer.item_id, {})[names[answer.annotator_id]] = mine
    return [
        MarkedExample(tuple(item.content["texts"]), item.content["label"], marks.get(item.id, {}))
        for item in project.items
        if item.content["texts"]
    ]


def _compute_rankings(answers: Sequence[AnnotatorAnswer]) -> Findings:
    ballots = [(answer.item.number, answer.content["ranks"]) for answer in answers]
    if not ballots:
        return Findings(0)
    w, count = mean_kendall_w(ballots)
    ranked = [ballot for _, ballot in ballots]
    return Findings(
        len(answers),
        rate_methods(ranked),
        w,
        count,
        kendall_w(_rank_by_person(answers)),
        alpha=_compute_rank_alpha(ballots),
        strengths=estimate_strengths(ranked, [answer.annotator_id for answer in answers]),
    )


def _compute_rank_alpha(ballots: Sequence[tuple[int, Ballot]]) -> float:
    units: dict[tuple[int, str], list[int]] = {}
    for example, ballot in ballots:
        for method, rank in ballot.items():
            units.setdefault((example, method), []).append(rank)
    return krippendorff_alpha(units.values(), "ordinal")


def _compute_guess_alpha(answers: Sequence[AnnotatorAnswer]) -> float:
    units: dict[int, list[str]] = {}
    for answer in answers:
        if answer.phase == AFTER:
            units.setdefault(answer.item_id, []).append(answer.content["guess"])
    return krippendorff_alpha(units.values())


def _transpose_marks(example: MarkedExample, unit: str) -> list[list[bool]]:
    """For each word or sentence, whether each person marked it."""
    rows = [find_units(example, marks, unit).tolist() for marks in example.marks.values()]
    return [list(column) for column in zip(*rows, strict=True)]


def _rank_by_person(answers: Sequence[AnnotatorAnswer]) -> list[Ballot]:
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
