"""The grid of a study's runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from expound_papers.runs.cell_builder import CellBuilder
from expound_papers.runs.store import Cell
from expound_papers.runs.study_run import StudyRun
from expound_papers.runs.study_sources import Addresses, StudySources
from expound_papers.spec.study_file import Study


@dataclass(frozen=True)
class RunGrid:
    """A study's runs in the order in which they start.

    `missing` has a line for each dataset and model that is not on this machine. `addresses` has the addresses of the
    `datasets` for training, of those for judgements (`judged`) and of the `models`, by name.
    """

    study: Study
    runs: Sequence[StudyRun]
    missing: Sequence[str]
    addresses: Addresses = field(default_factory=dict)

    @property
    def cells(self) -> list[Cell]:
        """The cells of all runs, each once."""
        return list({run.cell.key: run.cell for run in self.runs}.values())

    def select(self, pattern: str | None) -> RunGrid:
        """Return the grid of the runs whose title contains a pattern (with * and ?), and of the runs that they need."""
        if pattern is None:
            return self
        selected = set[str]()
        for run in self.runs:
            # Also as plain text: a title may contain brackets, which a pattern would read as a set of characters.
            if pattern in run.title or fnmatchcase(run.title, f"*{pattern}*"):
                selected.add(run.cell.key)
        needs = {run.cell.key: run.cell.needs for run in self.runs}
        pending = list(selected)
        while pending:
            added = set(needs.get(pending.pop(), ())) - selected
            selected |= added
            pending += added
        return replace(self, runs=[run for run in self.runs if run.cell.key in selected])


def build_grid(study: Study, recorded: Addresses | None = None) -> RunGrid:
    """Build all runs of a study: each recipe on each model and training data with each seed, and its judgements.

    Args:
        study: a study file that was read.
        recorded: addresses from another machine, used for datasets and models that are not on this one.

    Raises:
        ExpoundError: a run needs itself or a run that does not exist; with file and line.
    """
    sources = StudySources(study, recorded or {})
    return RunGrid(study, CellBuilder(study, sources).build_runs(), sources.find_missing(), sources.addresses)
