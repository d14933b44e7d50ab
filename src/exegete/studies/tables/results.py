"""The results of a study's finished runs, under the names of its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exegete.data.cards import MetricCard
from exegete.metrics import cards, metric
from exegete.metrics.registry import PEAK_MEMORY, SECONDS
from exegete.studies.protocols.registry import PROTOCOLS
from exegete.studies.runs.agreement import compute_comparisons
from exegete.studies.runs.grid import RunGrid
from exegete.studies.runs.run_files import FIGURES, PREDICTIONS, RESULTS
from exegete.studies.runs.store import Store
from exegete.studies.runs.study_run import StudyRun
from exegete.training.loop.run import METRICS

DEV, TRAINING_SECONDS = "dev_", "training_seconds"
HIGHER_IS_BETTER = ("accuracy", "f1_macro", "f1", "exact_match", "pearson")
COLUMNS = ("training", "model", "recipe", "seed", "dataset", "judgement", "explainer", "metric", "value")


@dataclass(frozen=True)
class Results:
    """The figures of finished runs, and the way back to what they are made of.

    `figures`: a row a run, explainer and metric, with the columns COLUMNS; `explainer` is empty for a figure of the
    model itself. Figures of training (on the dev split of the best model) have names that begin with `dev_`.
    `left_out`: addresses of models that do not count, as they missed the bound they were trained under.
    """

    grid: RunGrid
    store: Store
    figures: pd.DataFrame
    left_out: frozenset[str] = frozenset()

    def get_card(self, name: str) -> MetricCard:
        """The facts of a metric of the study, or of a figure of the model: losses are better when lower."""
        declared = self.grid.study.file.metrics
        if name in declared:
            return metric(declared[name]).card
        if name in cards():
            return cards()[name]
        if name in self.grid.study.file.comparisons:
            return MetricCard(name=name, family="agreement", higher_is_better=True, label=name)
        for protocol in PROTOCOLS.values():
            if name in protocol.figures:
                return MetricCard(name=name, family="cost", higher_is_better=protocol.figures[name], label=name)
        return MetricCard(
            name=name, family="cost", higher_is_better=name.removeprefix(DEV) in HIGHER_IS_BETTER, label=name
        )

    def find_runs(self, **where: Any) -> list[StudyRun]:
        """The finished judged runs with these fields, of models that count."""
        return [
            run
            for run in self.grid.runs
            if run.dataset
            and all(getattr(run, name) == value for name, value in where.items())
            and self.store.is_done(run.cell.key)
            and self.left_out.isdisjoint(run.cell.needs)
        ]

    def read_examples(self, run: StudyRun) -> pd.DataFrame:
        """A judged run's rows by example, under this study's names; what has several names has rows under each."""
        frame = self.name_explainers(run, pd.read_parquet(self.store.cell_folder(run.cell.key) / RESULTS))
        stored = {name: frame[spec] for name, spec in self.grid.study.file.metrics.items() if spec in frame.columns}
        protocol = [name for each in PROTOCOLS.values() for name in each.figures]
        usual = {"example", "explainer", SECONDS.name, PEAK_MEMORY.name, *protocol}
        kept = frame[[name for name in frame.columns if name in usual]].assign(**stored)
        return kept.astype(dict.fromkeys(kept.columns.drop(["example", "explainer"]), np.float64))

    def name_explainers(self, run: StudyRun, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows that a judged run stored with a `method`, with this study's names as `explainer`."""
        parts = [frame[frame["method"] == spec].assign(explainer=name) for name, spec in run.explainers.items()]
        return pd.concat(parts, ignore_index=True)

    def read_predictions(self, run: StudyRun) -> pd.DataFrame:
        """The predictions of a judged run's model, one row an example."""
        return pd.read_parquet(self.store.cell_folder(run.cell.key) / PREDICTIONS)


def collect_results(grid: RunGrid, store: Store) -> Results:
    """The figures of all runs of a grid that are done; without models that missed the bound they were trained under."""
    empty = Results(grid, store, pd.DataFrame(columns=list(COLUMNS)))
    done = [run for run in grid.runs if store.is_done(run.cell.key)]
    trained = [run for run in done if not run.dataset]
    missed = frozenset(run.cell.key for run in trained if is_infeasible(store.cell_folder(run.cell.key)))
    kept = [run for run in done if missed.isdisjoint({run.cell.key, *run.cell.needs})]
    rows = [row for run in kept for row in _figure_rows(empty, run)]
    titles = {run.title for run in kept}
    rows += [
        (run.training, run.model, run.recipe, run.seed, run.dataset, run.judgement, explainer, name, value)
        for run, explainer, name, value in compute_comparisons(grid, store)
        if run.title in titles
    ]
    return Results(grid, store, pd.DataFrame(rows, columns=list(COLUMNS)), missed)


def is_infeasible(folder: Path) -> bool:
    """Whether a trained model's folder says that it missed the bound it was trained under."""
    return dict(_read_numbers(folder / METRICS)).get("feasible") == 0


def _figure_rows(results: Results, run: StudyRun) -> Iterator[tuple[Any, ...]]:
    folder = results.store.cell_folder(run.cell.key)
    place = (run.training, run.model, run.recipe, run.seed)
    if not run.dataset:
        dev = results.grid.study.file.training[run.training].dev
        for name, value in _read_numbers(folder / METRICS):
            yield (*place, dev, "", "", f"{DEV}{name}", value)
        record = results.store.read_record(run.cell.key) or {}
        yield (*place, dev, "", "", TRAINING_SECONDS, float(record.get("seconds", np.nan)))
        return
    for name, value in () if run.partly else _read_numbers(folder / FIGURES):
        yield (*place, run.dataset, run.judgement, "", name, value)
    if (folder / RESULTS).exists():
        means = results.read_examples(run).drop(columns="example").groupby("explainer", sort=False).mean()
        for explainer, row in means.iterrows():
            yield from ((*place, run.dataset, run.judgement, explainer, name, row[name]) for name in means.columns)


def _read_numbers(path: Path) -> Iterator[tuple[str, float]]:
    for name, value in json.loads(path.read_text(encoding="utf-8")).items():
        if value is None or isinstance(value, int | float):
            yield name, np.nan if value is None else float(value)
