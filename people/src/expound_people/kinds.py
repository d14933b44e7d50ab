"""Kinds of human study: ranking explanations, marking evidence, predicting the model's answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from expound.data.alignment import Word
from expound.data.readers.marked import split_units
from expound.data.spans import merge_marked_words
from expound_people.blinding import BlindExplanation
from expound_people.texts import MissingError, make_translator

ONLY_PHASE = ""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class AnnotationTask:
    """The content and question that one annotator sees for one example in one phase.

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
        """Return the words or sentences of all texts, which can be marked."""
        return split_units(self.texts, self.unit)


class StudyKind(ABC):
    """The base of all kinds of study.

    `phases`: the questions about each example, in order; `final_phases`: those whose answers cannot be changed;
    `min_methods`: explanations that each example needs; `is_simulation`: annotators predict the model's answer;
    `has_changes`: they predict it for a changed version of each example.
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
        """Return the default question to annotators, in English."""
        return str(make_translator()(f"{self.name}_question"))

    @abstractmethod
    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """Return the content of the answer in a form. Raises MissingError for what is missing or invalid."""


class RankingStudy(StudyKind):
    """Ranking of unnamed explanations, 1 is best, ties allowed (Fernandes et al. 2022, appendix B)."""

    name = "rank"
    title = "Rank explanations"
    min_methods = 2

    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """Return the `ranks` by method, and the `order` in which the methods were shown."""
        valid = [str(rank) for rank in range(1, len(task.explanations) + 1)]
        ranks = {}
        for explanation in task.explanations:
            # Forms name letters only. The server maps them to methods, so that the page's source reveals nothing.
            values = form.get(f"rank-{explanation.letter}", ())
            if len(values) != 1 or values[0] not in valid:
                raise MissingError("needs_rank", letter=explanation.letter, count=len(valid))
            ranks[explanation.method] = int(values[0])
        return {"ranks": ranks, "order": list(ranks)}


class HighlightStudy(StudyKind):
    """Marking of the words or sentences that are evidence for the label: a human rationale."""

    name = "highlight"
    title = "Mark evidence"

    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """Return the `marks`, (segment, start, end) in characters; neighboring units are merged."""
        units = task.units
        chosen = set(form.get("unit", ()))
        if not chosen <= {str(number) for number in range(len(units))}:
            raise MissingError("not_of_text")
        marks = []
        for segment in range(len(task.texts)):
            spans = [(unit.start, unit.end) for unit in units if unit.segment == segment]
            is_chosen = [str(number) in chosen for number, unit in enumerate(units) if unit.segment == segment]
            marks += [[segment, start, end] for start, end in merge_marked_words(spans, is_chosen)]
        return {"marks": marks}


class SimulationStudy(StudyKind):
    """Forward simulation: annotators predict the model's answer, first without and then with an explanation."""

    name = "simulate"
    title = "Predict the model"
    phases = (BEFORE, AFTER)
    # Once the explanation was shown, the first guess must not be improved with its help.
    final_phases = (BEFORE,)
    min_methods = 1
    is_simulation = True

    def parse_form(self, form: Mapping[str, Sequence[str]], task: AnnotationTask, phase: str) -> dict[str, Any]:
        """Return the `guess`, a label, and in the second phase the `method` of the explanation that was shown."""
        values = form.get("guess", ())
        if len(values) != 1 or values[0] not in map(str, range(len(task.labels))):
            raise MissingError("needs_guess")
        content = {"guess": task.labels[int(values[0])]}
        if phase == AFTER:
            content["method"] = task.explanations[0].method
        return content


class CounterfactualStudy(SimulationStudy):
    """Counterfactual simulation (Hase and Bansal 2020, section 3.2).

    Annotators know the model's answer to an example and predict its answer to a changed version, before and after they
    see the explanation of the original.
    """

    name = "counterfactual"
    title = "Predict the model on changed examples"
    has_changes = True


_KINDS = (RankingStudy(), HighlightStudy(), SimulationStudy(), CounterfactualStudy())
KINDS: dict[str, StudyKind] = {kind.name: kind for kind in _KINDS}
