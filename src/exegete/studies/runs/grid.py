"""From a study to its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from exegete.studies.runs.cell_builder import CellBuilder
from exegete.studies.runs.store import Cell
from exegete.studies.runs.study_run import StudyRun
from exegete.studies.runs.study_sources import Addresses, StudySources
from exegete.studies.spec.study_file import Study


@dataclass(frozen=True)
class RunGrid:
    """A study's runs in the order they are begun, and what of it is not on this machine.

    `addresses`: of its `datasets`, as it trains on them and as it is `judged` on them, and of its `models`, by name.
    """

    study: Study
    runs: Sequence[StudyRun]
    missing: Sequence[str]
    addresses: Addresses = field(default_factory=dict)

    @property
    def cells(self) -> list[Cell]:
        """The runs' cells, each once."""
        return list({run.cell.key: run.cell for run in self.runs}.values())

    def select(self, pattern: str | None) -> RunGrid:
        """The runs whose title has the pattern in it (* and ? allowed), and those that they need."""
        if pattern is None:
            return self
        wanted = {run.cell.key for run in self.runs if pattern in run.title or fnmatchcase(run.title, f"*{pattern}*")}
        needs = {run.cell.key: run.cell.needs for run in self.runs}
        todo = list(wanted)
        while todo:
            more = set(needs.get(todo.pop(), ())) - wanted
            wanted |= more
            todo += more
        return replace(self, runs=[run for run in self.runs if run.cell.key in wanted])


def build_grid(study: Study, recorded: Addresses | None = None) -> RunGrid:
    """All runs of a study: every training of every recipe on every model and data by every seed, and its judgements.

    `recorded`: the addresses that datasets and models have elsewhere; they stand in for what is not on this machine.

    Raises:
        ExegeteError: a run that is needed is not there, or needs itself; with file and line.
    """
    there = StudySources(study, recorded or {})
    return RunGrid(study, CellBuilder(study, there).build_runs(), there.find_missing(), there.addresses)
