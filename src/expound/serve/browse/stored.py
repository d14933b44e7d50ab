"""Results on disk, and the names that they have in addresses."""

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

from expound.errors import ExpoundError
from expound.evaluation.compare.comparison import Comparison
from expound.evaluation.compare.examples import EXAMPLES, read_examples
from expound.evaluation.corpus.parts import HEAD as CORPUS
from expound.explainers import EXPLAINERS, Explainer, explainer
from expound.metrics import metric
from expound.metrics.registry import PEAK_MEMORY, SECONDS
from expound.reports.explanations import Explanation, Explanations
from expound.reports.tables.leaderboard import Leaderboard
from expound.serve.browse.disagreement import compute_correlations
from expound_papers.runs.execution import judge_model, load_learned_explainer
from expound_papers.runs.run_files import ATTRIBUTIONS, CURVES, RESULTS
from expound_papers.runs.store import Cell, Store

RUN, REPORT, FIGURES = "expound_run.json", "report.html", "figures.parquet"
MAX_DEPTH = 3


@dataclass(frozen=True)
class Result:
    """A comparison, an evaluated run of a study, a study's report or an explained corpus.

    Files are read when a property is first used, so that a server with many results starts at once.
    """

    name: str
    title: str
    folder: Path

    @property
    def has_attributions(self) -> bool:
        """Whether the attributions were kept."""
        return (self.folder / ATTRIBUTIONS).is_dir()

    @property
    def report_path(self) -> Path | None:
        """The path of the report that was written with the result, if any."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    @property
    def is_study(self) -> bool:
        """Whether the result is a study's report, which has figures of runs but no examples."""
        return (self.folder / FIGURES).is_file() and not (self.folder / RESULTS).is_file()

    @property
    def is_corpus(self) -> bool:
        """Whether the result is an explained corpus, which has the rows of one method and is read in parts."""
        return (self.folder / CORPUS).is_file()

    @cached_property
    def figures(self) -> pd.DataFrame:
        """The figures of a study, one per run, explainer and metric."""
        return pd.read_parquet(self.folder / FIGURES)

    @cached_property
    def comparison(self) -> Comparison:
        """The scores, and the attributions if they were kept."""
        if (self.folder / RUN).is_file():
            return Comparison.load(self.folder)
        return _load_run(self.folder)

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """The table of methods by metrics, sorted by the first metric."""
        return self.comparison.leaderboard

    @cached_property
    def titles(self) -> dict[str, str]:
        """The displayed title of each method."""
        return self.comparison.titles

    @cached_property
    def methods(self) -> list[str]:
        """The compared methods, in order."""
        return list(dict.fromkeys(self.comparison.results["method"]))

    @cached_property
    def learned_methods(self) -> list[str]:
        """The learned methods, which were loaded from a folder."""
        config = self.comparison.config
        if "explainers" in config:
            return [name for name, facts in config["explainers"].items() if "run" in facts]
        methods = config.get("methods", {})
        return [name for name, facts in methods.items() if ":" in name and EXPLAINERS[facts["method"]].card.learned]

    def load_explainer(self, name: str) -> Explainer:
        """Load one of the learned methods. Raises ExpoundError if its folder no longer exists."""
        config = self.comparison.config
        if "explainers" not in config:
            return explainer(name)
        # A run's folder is STORE/cells/KEY, and the explainer is stored with the cell that trained it.
        store = Store(self.folder.parents[1])
        method = load_learned_explainer(Cell(config, judge_model, self.title), name, store)
        assert method is not None
        return method

    @cached_property
    def attributions(self) -> dict[int, dict[str, Explanation]]:
        """The attributions by example, and then by method."""
        attributions: dict[int, dict[str, Explanation]] = {}
        rows = self.comparison.results[["example", "method"]].itertuples(index=False)
        for (example, method), item in zip(rows, self.comparison.attributions, strict=False):
            attributions.setdefault(int(example), {})[str(method)] = item
        return attributions

    @cached_property
    def correlations(self) -> dict[int, NDArray[np.float64]]:
        """Kendall's τ between each two methods [M, M], by example."""
        return {example: compute_correlations(list(items.values())) for example, items in self.attributions.items()}

    @cached_property
    def disagreement(self) -> dict[int, float]:
        """1 − the mean τ over pairs of methods, by example: 0 for equal rankings, 1 unrelated, 2 opposite."""
        below = np.tril_indices(len(self.methods), -1)
        return {example: 1 - nan_mean(matrix[below]) for example, matrix in self.correlations.items()}

    @cached_property
    def agreement(self) -> NDArray[np.float64]:
        """The mean τ over examples between each two methods [M, M]."""
        taus = np.stack(list(self.correlations.values()))
        # Not np.nanmean: it warns about pairs of methods that have no τ on any example.
        flat = [nan_mean(column) for column in taus.reshape(len(taus), -1).T]
        return np.array(flat).reshape(taus.shape[1:])


def open_results(folders: Iterable[Path]) -> dict[str, Result]:
    """Return the results in the folders, by name.

    The folder of a study has a result per evaluated run. Folders inside a folder are searched, `MAX_DEPTH` deep.

    Raises:
        ExpoundError: a folder has no results.
    """
    results: dict[str, Result] = {}
    for folder in folders:
        for title, result_folder in _list_results(folder):
            name = _make_unique_name(title, results)
            results[name] = Result(name, title, result_folder)
    return results


def _list_results(folder: Path) -> list[tuple[str, Path]]:
    """Return the title and folder of each result in a folder. Raises ExpoundError if the folder has no results."""
    results = list(_walk_results(folder, MAX_DEPTH))
    if not results:
        raise ExpoundError(
            f"{folder} holds no results: give a folder that `expound compare`, `expound explain --data`, "
            "`expound study run` or `expound study report` wrote to, or one that holds such folders"
        )
    return results


def _walk_results(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    is_comparison = (folder / RUN).is_file() and (folder / RESULTS).is_file()
    if is_comparison or (folder / FIGURES).is_file() or (folder / CORPUS).is_file():
        yield folder.resolve().name, folder
        return
    store = Store(folder)
    for key in store.list_finished():
        if (store.cell_folder(key) / RESULTS).is_file():
            yield str((store.read_record(key) or {}).get("title", key)), store.cell_folder(key)
    if depth and folder.is_dir():
        for below in sorted(folder.iterdir()):
            # Cells are listed by the store above, and a link could lead out of the folder, or around in it.
            if below.is_dir() and not below.is_symlink() and below.name != "cells" and below.name[0] != ".":
                yield from _walk_results(below, depth - 1)


def _make_unique_name(title: str, taken: Iterable[str]) -> str:
    """Return a name for addresses, made of the title, that is not taken."""
    base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "result"
    names, number, name = set(taken), 2, base
    while name in names:
        name, number = f"{base}-{number}", number + 1
    return name


def _load_run(folder: Path) -> Comparison:
    record: dict[str, Any] = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    results = pd.read_parquet(folder / RESULTS)
    cards = []
    for spec in record["config"]["metrics"]:
        if spec in results:
            cards.append(replace(metric(spec).card, name=spec, label=spec))
    cost = [card for card in (SECONDS, PEAK_MEMORY) if card.name in results]
    kept = folder / ATTRIBUTIONS
    attributions = Explanations.load(kept) if kept.is_dir() else Explanations()
    examples = read_examples(folder / EXAMPLES, results["example"].nunique())
    curves = pd.read_parquet(folder / CURVES)
    return Comparison(results, curves, attributions, [*cards, *cost], examples, record["config"])


def nan_mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the finite values, or NaN without any."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
