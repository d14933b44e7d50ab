"""Results on disk by the names they go by in addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS, Explainer, explainer
from exegete.metrics import metric
from exegete.metrics.registry import PEAK_MEMORY, SECONDS
from exegete.reports.attributions import Attribution, Attributions
from exegete.reports.tables.leaderboard import Leaderboard
from exegete.studies.compare.comparison import Comparison
from exegete.studies.compare.examples import EXAMPLES, read_examples
from exegete.studies.corpus.parts import HEAD as CORPUS
from exegete.studies.runs.execution import judge_model, load_learned_explainer
from exegete.studies.runs.run_files import ATTRIBUTIONS, CURVES, RESULTS
from exegete.studies.runs.store import Cell, Store
from exegete.web.browse.disagreement import compute_correlations

RUN, REPORT, FIGURES = "exegete_run.json", "report.html", "figures.parquet"
DEPTH = 3


@dataclass(frozen=True)
class Result:
    """A comparison, a judged run of a study, a study's report or an explained corpus; read when first looked at."""

    name: str
    title: str
    folder: Path

    @property
    def has_attributions(self) -> bool:
        """Whether its attributions were kept."""
        return (self.folder / ATTRIBUTIONS).is_dir()

    @property
    def report_path(self) -> Path | None:
        """The page that was written with it."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    @property
    def is_study(self) -> bool:
        """Whether it is a study's report: figures of runs, no examples."""
        return (self.folder / FIGURES).is_file() and not (self.folder / RESULTS).is_file()

    @property
    def is_corpus(self) -> bool:
        """Whether it is an explained corpus: one method's rows, of any number."""
        return (self.folder / CORPUS).is_file()

    @cached_property
    def figures(self) -> pd.DataFrame:
        """A study's figures, one a run, explainer and metric."""
        return pd.read_parquet(self.folder / FIGURES)

    @cached_property
    def comparison(self) -> Comparison:
        """Its numbers and attributions; without attributions where a study kept none."""
        return Comparison.load(self.folder) if (self.folder / RUN).is_file() else _run(self.folder)

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """The table of methods and metrics, the best by the first metric first."""
        return self.comparison.leaderboard

    @cached_property
    def titles(self) -> dict[str, str]:
        """The methods in people's words, by name."""
        return self.comparison.titles

    @cached_property
    def methods(self) -> list[str]:
        """The methods compared, in order."""
        return list(dict.fromkeys(self.comparison.results["method"]))

    @cached_property
    def learned_methods(self) -> list[str]:
        """The methods that were read from a folder and have coefficients to show."""
        config = self.comparison.config
        if "explainers" in config:
            return [name for name, facts in config["explainers"].items() if "run" in facts]
        methods = config.get("methods", {})
        return [name for name, made in methods.items() if ":" in name and EXPLAINERS[made["method"]].card.learned]

    def load_explainer(self, name: str) -> Explainer:
        """One of the learned methods. Raises ExegeteError when its folder is not there any more."""
        config = self.comparison.config
        if "explainers" not in config:
            return explainer(name)
        found = load_learned_explainer(Cell(config, judge_model, self.title), name, Store(self.folder.parents[1]))
        assert found is not None
        return found

    @cached_property
    def attributions(self) -> dict[int, dict[str, Attribution]]:
        """The attributions by example, then by method."""
        found: dict[int, dict[str, Attribution]] = {}
        rows = self.comparison.results[["example", "method"]].itertuples(index=False)
        for (example, method), item in zip(rows, self.comparison.attributions, strict=False):
            found.setdefault(int(example), {})[str(method)] = item
        return found

    @cached_property
    def correlations(self) -> dict[int, NDArray[np.float64]]:
        """By example: Kendall's τ between every two methods."""
        return {example: compute_correlations(list(items.values())) for example, items in self.attributions.items()}

    @cached_property
    def disagreement(self) -> dict[int, float]:
        """By example: 1 − mean τ over pairs of methods; 0 is full agreement, 1 none, 2 the opposite."""
        below = np.tril_indices(len(self.methods), -1)
        return {example: 1 - mean(matrix[below]) for example, matrix in self.correlations.items()}

    @cached_property
    def agreement(self) -> NDArray[np.float64]:
        """Methods × methods: mean τ over examples."""
        every = np.stack(list(self.correlations.values()))
        size = len(self.methods)
        return np.array([[mean(every[:, one, other]) for other in range(size)] for one in range(size)])


def open_results(folders: Iterable[Path]) -> dict[str, Result]:
    """The results in folders, by name. A folder of a study's runs gives a result for each judged run; one that
    holds folders of results, each of these.

    Raises:
        ExegeteError: a folder without results.
    """
    found: dict[str, Result] = {}
    for folder in folders:
        for title, place in _results(folder):
            name = _free(title, found)
            found[name] = Result(name, title, place)
    return found


def _results(folder: Path) -> Iterator[tuple[str, Path]]:
    """The results of a folder, or of the folders in it. Raises ExegeteError where there are none."""
    found = list(_found(folder, DEPTH))
    if not found:
        raise ExegeteError(
            f"{folder} holds no results: give a folder that `exegete compare`, `exegete explain --data`, "
            "`exegete study run` or `exegete study report` wrote to, or one that holds such folders"
        )
    yield from found


def _found(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    compared = (folder / RUN).is_file() and (folder / RESULTS).is_file()
    if compared or (folder / FIGURES).is_file() or (folder / CORPUS).is_file():
        yield folder.resolve().name, folder
        return
    store = Store(folder)
    for key in store.list_finished():
        if (store.cell_folder(key) / RESULTS).is_file():
            yield str((store.read_record(key) or {}).get("title", key)), store.cell_folder(key)
    if depth and folder.is_dir():
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not below.is_symlink() and below.name != "cells" and below.name[0] != ".":
                yield from _found(below, depth - 1)


def _free(title: str, taken: Iterable[str]) -> str:
    """A name for addresses, made of the title."""
    base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "result"
    names, number, name = set(taken), 2, base
    while name in names:
        name, number = f"{base}-{number}", number + 1
    return name


def _run(folder: Path) -> Comparison:
    record: dict[str, Any] = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    results = pd.read_parquet(folder / RESULTS)
    cards = [
        replace(metric(spec).card, name=spec, label=spec) for spec in record["config"]["metrics"] if spec in results
    ]
    cost = [card for card in (SECONDS, PEAK_MEMORY) if card.name in results]
    kept = folder / ATTRIBUTIONS
    attributions = Attributions.load(kept) if kept.is_dir() else Attributions()
    examples = read_examples(folder / EXAMPLES, results["example"].nunique())
    curves = pd.read_parquet(folder / CURVES)
    return Comparison(results, curves, attributions, [*cards, *cost], examples, record["config"])


def mean(values: NDArray[np.float64]) -> float:
    """The mean without NaN; NaN where nothing is left."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
