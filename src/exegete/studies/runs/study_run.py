"""A run of a study, and its place in the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exegete.studies.runs.store import Cell
from exegete.studies.spec.run_ref import RunRef


@dataclass(frozen=True)
class StudyRun:
    """A cell with its place in the grid: names of the study file.

    A judged run has a `dataset` and `judgement`; one that trains has none. `explainers`: what its results are stored
    under, by name. `partly`: of explainers that are judged on a part of the examples, beside a run on all of them.
    """

    cell: Cell
    training: str
    model: str
    recipe: str
    seed: int
    dataset: str = ""
    judgement: str = ""
    explainers: Mapping[str, str] = field(default_factory=dict)
    partly: bool = False

    @property
    def title(self) -> str:
        """The place in words, as patterns of `--only` see it."""
        return self.cell.title if self.partly else join_title(*place_names(self), self.judgement, self.dataset)


def place_names(at: StudyRun | RunRef) -> tuple[str, str, str, str]:
    """A place's names, in the order of titles."""
    return at.training, at.model, at.recipe, f"seed {at.seed}"


def join_title(*parts: str) -> str:
    """The parts that there are as one title."""
    return " / ".join(part for part in parts if part)
