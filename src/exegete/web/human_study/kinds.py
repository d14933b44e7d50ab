"""The kinds of human study: ranking explanations, marking evidence, predicting the model's answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from exegete.data.alignment import Word
from exegete.data.marked import split_units
from exegete.data.spans import merge_marked_words
from exegete.web.human_study.blinding import BlindExplanation
from exegete.web.human_study.texts import MissingError, make_translator

ONLY_PHASE = ""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class AnnotationTask:
    """What one annotator is shown and asked about one example in one phase.

    `explanations`: under letters, in this annotator's order; `labels`: the model's possible answers; `changed`: the
    version of the example whose answer is asked, if any; `unit`: word or sentence, the unit that people mark.
    """

    texts: tuple[str, ...]
    has_picture: bool
    explanations: Sequence[BlindExplanation]
    labels: Sequence[str]
    prediction: str | None
    changed: Mapping[str, Any] | None = None
    unit: str = "word"

    @property
    def units(self) -> list[Word]:
        """The parts of all texts that can be marked."""
        return split_units(self.texts, self.unit)


class StudyKind(ABC):
    """A kind of study. `phases` are asked one after the other; `final_phases`: an answer in these cannot be changed.

    `is_simulation`: people say what the model answers; `has_changes`: to a changed version of each example.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    phases: ClassVar[tuple[str, ...]] = (ONLY_PHASE,)
    final_phases: ClassVar[tuple[str, ...]] = ()
    min_methods: ClassVar[int] = 0
    is_simulation: ClassVar[bool] = False
    has_changes: ClassVar[bool] = False

    @property
    def question(self) -> str:
        """The question to people, in English."""
        return str(make_translator()(f"{self.name}_question"))

    @abstractmethod
    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """The answer that a form holds, by method. Raises MissingError, telling what that is."""


class RankingStudy(StudyKind):
    """Rank unnamed explanations, 1 is best, ties allowed (Fernandes et al. 2022, appendix B)."""

    name = "rank"
    title = "Rank explanations"
    min_methods = 2

    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """`ranks` by method, and the `order` in which they were shown."""
        ranks = {}
        for each in task.explanations:
            given = form.get(f"rank-{each.letter}", ())
            if len(given) != 1 or given[0] not in map(str, range(1, len(task.explanations) + 1)):
                raise MissingError("needs_rank", letter=each.letter, count=len(task.explanations))
            ranks[each.method] = int(given[0])
        return {"ranks": ranks, "order": [each.method for each in task.explanations]}


class HighlightStudy(StudyKind):
    """Mark the words or sentences that are evidence for the label: a human rationale."""

    name = "highlight"
    title = "Mark evidence"

    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """`marks`: (side, start, end) in characters; neighbouring units make one mark."""
        units = task.units
        chosen = set(form.get("unit", ()))
        if not chosen <= {str(number) for number in range(len(units))}:
            raise MissingError("not_of_text")
        marks = [
            [side, start, end]
            for side in range(len(task.texts))
            for start, end in merge_marked_words(
                [(unit.start, unit.end) for unit in units if unit.side == side],
                [str(number) in chosen for number, unit in enumerate(units) if unit.side == side],
            )
        ]
        return {"marks": marks}


class SimulationStudy(StudyKind):
    """Predict the model's answer, first without and then with an explanation (forward simulation)."""

    name = "simulate"
    title = "Predict the model"
    phases = (BEFORE, AFTER)
    final_phases = (BEFORE,)
    min_methods = 1
    is_simulation = True

    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """`guess`: a label; `method`: what explained it, in the second phase."""
        given = form.get("guess", ())
        if len(given) != 1 or given[0] not in map(str, range(len(task.labels))):
            raise MissingError("needs_guess")
        guess = {"guess": task.labels[int(given[0])]}
        return guess | ({"method": task.explanations[0].method} if phase == AFTER else {})


class CounterfactualStudy(SimulationStudy):
    """Predict the model's answer to a changed version of an example whose answer is known, before and after the
    example's explanation (counterfactual simulation, Hase and Bansal 2020, section 3.2).
    """

    name = "counterfactual"
    title = "Predict the model on changed examples"
    has_changes = True


KINDS: dict[str, StudyKind] = {
    kind.name: kind for kind in (RankingStudy(), HighlightStudy(), SimulationStudy(), CounterfactualStudy())
}
