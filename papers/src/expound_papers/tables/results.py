"""The results of a study's finished runs, under the study's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from expound.data.cards import MetricCard
from expound.metrics import cards, metric
from expound.metrics.registry import PEAK_MEMORY, SECONDS
from expound.training.loop.run import METRICS
from expound_papers.protocols.registry import PROTOCOLS
from expound_papers.runs.run_files import FIGURES, PREDICTIONS, RESULTS
from expound_papers.runs.store import Store
from expound_papers.study.parts import StudyRun
from expound_papers.study.study import Study
from expound_papers.tables.agreement import compute_comparisons

DEV, TRAINING_SECONDS = "dev_", "training_seconds"
HIGHER_IS_BETTER = ("accuracy", "f1_macro", "f1", "exact_match", "pearson")
COLUMNS = ("training", "model", "recipe", "seed", "dataset", "judgement", "explainer", "metric", "value")


@dataclass(frozen=True)
class Results:
    """The figures of finished runs, and access to the runs' stored results.

    Attributes:
        study: the study with its runs.
        store: the folder of finished runs.
        figures: one row per run, explainer and metric, with the columns COLUMNS; `explainer` is empty for a figure of
            the model itself. Figures of training (of the best model on the dev split) begin with `dev_`.
        left_out: addresses of models that are excluded because they missed the constraint of their training.
        layouts: the tables that were laid out so far, by name.
    """

    study: Study
    store: Store
    figures: pd.DataFrame
    left_out: frozenset[str] = frozenset()
    layouts: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _examples: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def get_card(self, name: str) -> MetricCard:
        """Return the card of a metric of the study or of a figure of the model; lower is better for unknown figures."""
        declared = self.study.metrics
        if name in declared:
            return metric(declared[name]).card
        if name in cards():
            return cards()[name]
        if name in self.study.comparisons:
            return MetricCard(name=name, family="agreement", higher_is_better=True, label=name)
        for protocol in PROTOCOLS.values():
            if name in protocol.figures:
                return MetricCard(name=name, family="cost", higher_is_better=protocol.figures[name], label=name)
        return MetricCard(
            name=name, family="cost", higher_is_better=name.removeprefix(DEV) in HIGHER_IS_BETTER, label=name
        )

    def find_runs(self, **where: Any) -> list[StudyRun]:
        """Return the finished judgements with these fields, without those of excluded models."""
        found = [run for run in self.study.runs if run.dataset and self.left_out.isdisjoint(run.cell.needs)]
        for name, value in where.items():
            found = [run for run in found if getattr(run, name) == value]
        return [run for run in found if self.store.is_done(run.cell.key)]

    def read_examples(self, run: StudyRun) -> pd.DataFrame:
        """Return a judgement's rows per example, with explainers and metrics under this study's names.

        A result that has several names in the study has rows or columns under each of them. A run is read once, since
        several tables and claims of a page need it: the frame is shared and must not be changed.
        """
        if run.title not in self._examples:
            self._examples[run.title] = self._read_examples(run)
        return self._examples[run.title]

    def _read_examples(self, run: StudyRun) -> pd.DataFrame:
        frame = self.name_explainers(run, self.store.read_frame(run.cell.key, RESULTS))
        protocol = chain.from_iterable(each.figures for each in PROTOCOLS.values())
        usual = {SECONDS.name, PEAK_MEMORY.name, *protocol}
        columns = {name: name for name in frame.columns if name in usual}
        columns |= {name: spec for name, spec in self.study.metrics.items() if spec in frame.columns}
        # All columns at once: a page reads hundreds of runs, and pandas is slow to add or convert a single column.
        numbers = {name: frame[column].to_numpy(np.float64) for name, column in columns.items()}
        return pd.DataFrame({"example": frame["example"], "explainer": frame["explainer"], **numbers})

    def name_explainers(self, run: StudyRun, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the stored rows of a judgement with this study's names as `explainer`."""
        methods = frame["method"].to_numpy()
        rows = [np.flatnonzero(methods == spec) for spec in run.explainers.values()]
        names = np.repeat(list(run.explainers), [len(each) for each in rows])
        return frame.take(np.concatenate(rows)).reset_index(drop=True).assign(explainer=names)

    def read_predictions(self, run: StudyRun) -> pd.DataFrame:
        """Return the predictions of a judgement's model, one row per example."""
        return self.store.read_frame(run.cell.key, PREDICTIONS)


def collect_results(study: Study, store: Store) -> Results:
    """Return the figures of a study's finished runs, without models that missed the constraint of their training."""
    empty = Results(study, store, pd.DataFrame(columns=list(COLUMNS)))
    done = [run for run in study.runs if store.is_done(run.cell.key)]
    missed = set[str]()
    for run in done:
        if not run.dataset and is_infeasible(store, run.cell.key):
            missed.add(run.cell.key)
    rows, titles = list[tuple[Any, ...]](), set[str]()
    for run in done:
        if missed.isdisjoint({run.cell.key, *run.cell.needs}):
            rows += _figure_rows(empty, run)
            titles.add(run.title)
    for run, *figure in compute_comparisons(study, store):
        if run.title in titles:
            rows.append((run.training, run.model, run.recipe, run.seed, run.dataset, run.judgement, *figure))
    return replace(empty, figures=pd.DataFrame(rows, columns=list(COLUMNS)), left_out=frozenset(missed))


def is_infeasible(store: Store, key: str) -> bool:
    """Return whether a trained model missed the constraint of its training, as its figures say."""
    return store.read_numbers(key, METRICS).get("feasible") == 0


def _figure_rows(results: Results, run: StudyRun) -> Iterator[tuple[Any, ...]]:
    store, key = results.store, run.cell.key
    place = (run.training, run.model, run.recipe, run.seed)
    if not run.dataset:
        dev = results.study.trainings[run.training].dev.name
        # The training metrics are of the checkpoint that was best on dev. Sorted, because a training that was resumed
        # after its last step has them in another order: the Trainer sorts the names in a checkpoint.
        for name, value in sorted(store.read_numbers(key, METRICS).items()):
            yield (*place, dev, "", "", f"{DEV}{name}", value)
        record = store.read_record(key) or {}
        yield (*place, dev, "", "", TRAINING_SECONDS, float(record.get("seconds", np.nan)))
        return
    if not run.partly:
        for name, value in store.read_numbers(key, FIGURES).items():
            yield (*place, run.dataset, run.judgement, "", name, value)
    if store.has_file(key, RESULTS):
        means = results.read_examples(run).groupby("explainer", sort=False).mean()
        for explainer, values in zip(means.index, means.to_numpy(), strict=True):
            for figure, mean in zip(means.columns, values, strict=True):
                if figure != "example":
                    yield (*place, run.dataset, run.judgement, explainer, figure, mean)
