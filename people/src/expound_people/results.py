"""Results of a human study: its answers, ratings, agreement, simulation gains and plausibility."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from expound.data.readers.marked import MarkedExample
from expound_people.analysis.agreement import krippendorff_alpha
from expound_people.analysis.bradley_terry import Strength, estimate_strengths
from expound_people.analysis.plausibility import Plausibility, evaluate_plausibility, find_units, mean_pairwise_f1
from expound_people.analysis.ranking import Rating, kendall_w, mean_kendall_w, rate_methods
from expound_people.analysis.simulation import Guess, SimulationGain, compute_gains
from expound_people.items import restore_explanation
from expound_people.kinds import AFTER, BEFORE, KINDS
from expound_people.protocol.file import get_main_part
from expound_people.tables import Annotator, AnnotatorAnswer, Item, Project

NAN = float("nan")


@dataclass(frozen=True)
class Findings:
    """A project's results; values that its kind does not have are empty or NaN.

    `w_examples`: mean of Kendall's W over the `n_examples` examples that several annotators ranked; `w_people`: W of
    the annotators' mean ranks of each method; `f1`: pairwise agreement of marks; `alpha`: Krippendorff's α of ranks
    (ordinal), second guesses or marked units (nominal).
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


def load_answers(session: Session, project: Project, excluded: Collection[int] = ()) -> list[AnnotatorAnswer]:
    """Load all answers about studied examples, without those of excluded annotators."""
    query = (
        select(AnnotatorAnswer)
        .join(Item)
        .join(Annotator, AnnotatorAnswer.annotator_id == Annotator.id)
        .where(Item.project_id == project.id, Item.role == "", Annotator.id.not_in(excluded))
        .options(selectinload(AnnotatorAnswer.item), selectinload(AnnotatorAnswer.annotator))
        # TrueSkill depends on the order of ballots, so the order must not depend on who answered first.
        .order_by(Item.number, AnnotatorAnswer.annotator_id, AnnotatorAnswer.phase)
    )
    return list(session.scalars(query))


def compute_findings(session: Session, project: Project, excluded: Collection[int] = ()) -> Findings:
    """Compute the results of a study's answers so far, without those of excluded annotators."""
    answers = load_answers(session, project, excluded)
    if project.kind == "rank":
        return _compute_rankings(answers)
    if KINDS[project.kind].is_simulation:
        gains = compute_gains(pair_guesses(answers), project.seed)
        return Findings(len(answers), gains=gains, alpha=_compute_guess_alpha(answers))
    examples = load_marked_examples(session, project, excluded)
    explanations = []
    for item in project.items:
        explanations.append({stored.method: restore_explanation(stored) for stored in item.explanations})
    unit = get_main_part(project.protocol).unit
    ratings: list[list[bool]] = []
    for example in examples:
        masks = [find_units(example, marks, unit) for marks in example.marks.values()]
        # One row per word or sentence: whether each annotator marked it.
        ratings += np.stack(masks, axis=1).tolist() if masks else []
    return Findings(
        len(answers),
        plausibility=evaluate_plausibility(examples, explanations),
        f1=mean_pairwise_f1(examples, unit),
        alpha=krippendorff_alpha(ratings),
    )


def pair_guesses(answers: Sequence[AnnotatorAnswer]) -> list[Guess]:
    """Pair each annotator's first and second guess on an example; examples with one guess are left out."""
    earlier = [answer for answer in answers if answer.phase == BEFORE]
    first = {(answer.annotator_id, answer.item_id): answer.content["guess"] for answer in earlier}
    pairs = []
    for answer in answers:
        key = (answer.annotator_id, answer.item_id)
        if answer.phase == AFTER and key in first:
            item, content = answer.item, answer.content
            before, after = first[key] == item.model_answer, content["guess"] == item.model_answer
            pairs.append(Guess(item.number, content["method"], before, after))
    return pairs


def find_widest_interval(session: Session, project: Project) -> float:
    """Return the width of the widest 95 % interval of a study's results; infinity if an interval is unknown."""
    findings = compute_findings(session, project)
    rows = findings.strengths if project.kind == "rank" else findings.gains
    widths = [row.high - row.low for row in rows]
    if not widths or np.isnan(widths).any():
        return float("inf")
    return max(widths)


def load_marked_examples(session: Session, project: Project, excluded: Collection[int] = ()) -> list[MarkedExample]:
    """Load the project's texts with the marks of every annotator."""
    marks: dict[int, dict[str, tuple[tuple[int, int, int], ...]]] = {}
    if project.kind == "highlight":
        for answer in load_answers(session, project, excluded):
            spans = tuple((segment, start, end) for segment, start, end in answer.content["marks"])
            marks.setdefault(answer.item_id, {})[answer.annotator.name] = spans
    examples = []
    for item in project.items:
        if item.content["texts"]:
            texts = tuple(item.content["texts"])
            examples.append(MarkedExample(texts, item.content["label"], marks.get(item.id, {})))
    return examples


def _compute_rankings(answers: Sequence[AnnotatorAnswer]) -> Findings:
    if not answers:
        return Findings(0)
    by_example = [(answer.item.number, answer.content["ranks"]) for answer in answers]
    ballots = [ballot for _, ballot in by_example]
    rows = []
    for answer in answers:
        for method, rank in answer.content["ranks"].items():
            rows.append((answer.annotator_id, answer.item.number, method, rank))
    table = pd.DataFrame(rows, columns=["person", "example", "method", "rank"])
    # One ranking of the methods per annotator, by the annotator's mean ranks.
    by_person = table.groupby(["person", "method"])["rank"].mean().unstack().rank(axis=1, method="dense")
    w_examples, n_examples = mean_kendall_w(by_example)
    return Findings(
        len(answers),
        rate_methods(ballots),
        w_examples,
        n_examples,
        kendall_w([{str(method): rank for method, rank in row.dropna().items()} for _, row in by_person.iterrows()]),
        # A unit is a method's explanation of an example, which each annotator rates by a rank.
        alpha=krippendorff_alpha(table.groupby(["example", "method"], sort=False)["rank"].agg(list), "ordinal"),
        strengths=estimate_strengths(ballots, [answer.annotator_id for answer in answers]),
    )


def _compute_guess_alpha(answers: Sequence[AnnotatorAnswer]) -> float:
    units: dict[int, list[str]] = {}
    for answer in answers:
        if answer.phase == AFTER:
            units.setdefault(answer.item_id, []).append(answer.content["guess"])
    return krippendorff_alpha(units.values())
