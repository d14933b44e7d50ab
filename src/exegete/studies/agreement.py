"""Do two attributions rank an example's tokens alike? Kendall's τ between models, and between explainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kendalltau

from exegete.errors import ExegeteError
from exegete.reports.storage import DATA
from exegete.studies.grid import Run
from exegete.studies.results import Results
from exegete.studies.runs import ATTRIBUTIONS

Scores = Mapping[str, Sequence[NDArray[np.float64]]]
"""By explainer: each example's scores, without special tokens."""

SEED = 42


def scores(results: Results, run: Run) -> Scores:
    """What a judged run kept of its attributions; magnitudes where an explainer is signed (Ferreira et al. 2025).

    Raises:
        ExegeteError: it kept none.
    """
    path = results.store.folder(run.cell.key) / ATTRIBUTIONS / DATA
    if not path.exists():
        raise ExegeteError(f"{run.title}: no attributions were kept; set keep_attributions in its judgement")
    frame = pd.read_parquet(path, columns=["scores", "special", "signed"])
    kept = [
        np.abs(s[~np.asarray(special, dtype=bool)]) if signed else s[~np.asarray(special, dtype=bool)]
        for s, special, signed in zip(frame["scores"], frame["special"], frame["signed"], strict=True)
    ]
    specs = list(run.cell.config["explainers"])
    size = len(kept) // len(specs)
    parts = {spec: kept[place * size : (place + 1) * size] for place, spec in enumerate(specs)}
    return {name: parts[spec] for name, spec in results.grid.study.file.explainers.items() if spec in parts}


def between_models(one: Sequence[Scores], other: Sequence[Scores]) -> dict[str, float]:
    """By explainer: mean τ of the same example explained on two models, drawn for each example from both groups.

    Where the groups are the same one, two different models are drawn: the agreement that seeds alone leave.
    """
    generator, same = np.random.default_rng(SEED), one is other
    if same and len(one) < 2:
        return dict.fromkeys(one[0], float("nan"))
    names = [name for name in one[0] if name in other[0]]
    taus: dict[str, list[float]] = {name: [] for name in names}
    for example in range(len(one[0][names[0]])):
        first = int(generator.integers(len(one)))
        second = int(generator.integers(len(other) - same))
        second += same and second >= first
        for name in names:
            taus[name].append(tau(one[first][name][example], other[second][name][example]))
    return {name: _mean(values) for name, values in taus.items()}


def between_explainers(models: Sequence[Scores]) -> dict[tuple[str, str], float]:
    """By pair of explainers: mean τ of the same example on the same model."""
    names = list(models[0])
    return {
        (one, other): _mean([tau(a, b) for model in models for a, b in zip(model[one], model[other], strict=True)])
        for one, other in _pairs(names)
    }


def tau(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Kendall's τ-b; NaN where either side has one value only."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(kendalltau(one, other).statistic)


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, one in enumerate(names):
        for other in names[place:]:
            yield one, other


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
