"""A run of a study, and its place in the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from expound_papers.runs.store import Cell
from expound_papers.spec.run_ref import RunRef


@dataclass(frozen=True)
class StudyRun:
    """A cell and its place in the grid, by names of the study file.

    A judgement has a `dataset` and a `judgement`; for a training both are empty. `explainers` maps the names of
    explainers to the names that their results are stored under. `partly`: it judges explainers on a sample of the
    examples, and another run judges the model on all of them.
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
        """The place in the grid in words, which the option --only is matched with."""
        if self.partly:
            return self.cell.title
        return join_title(*place_names(self), self.judgement, self.dataset)


def place_names(at: StudyRun | RunRef) -> tuple[str, str, str, str]:
    """Return the names of a place in the grid, in the order in which titles have them."""
    return at.training, at.model, at.recipe, f"seed {at.seed}"


def join_title(*parts: str) -> str:
    """Join the parts that are not empty to a title."""
    return " / ".join(filter(None, parts))
