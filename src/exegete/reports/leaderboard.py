"""The table of methods and metrics as numbers, without colour or markup: means, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

CONFIDENCE = 95.0
_CHUNK = 100


@dataclass(frozen=True, slots=True, eq=False)
class Leaderboard:
    """R methods judged by C metrics: the mean over examples and its 95 % interval.

    `mean`, `low`, `high` and `count` are [R, C]; `count` says over how many examples a metric was defined. Where it
    was for none, the numbers are NaN.
    """

    rows: list[str]
    cards: list[MetricCard]
    mean: Floats
    low: Floats
    high: Floats
    count: Counts


def leaderboard(
    results: pd.DataFrame,
    cards: Sequence[MetricCard],
    *,
    example: str = "example",
    n_resamples: int = 1000,
    seed: int = 0,
) -> Leaderboard:
    """Mean of each metric for each method, with percentile bootstrap intervals over examples.

    `results` has one row for each example (column `example`) and method (column "method"), and a column named as each
    card; NaN marks an example for which the metric is undefined, which is left out. All methods and metrics see the
    same resampled examples, so that their intervals can be compared. Methods stay in the order of `results`.

    Raises `ExegeteError` for missing columns and for a pair that comes twice.
    """
    _check(results, cards, example)
    rows = [str(name) for name in dict.fromkeys(results["method"])]
    values = _cube(results, cards, example)
    low, high = intervals(values, resamples(values.shape[2], n_resamples, seed))
    count = np.isfinite(values).sum(axis=2)
    return Leaderboard(rows, list(cards), _mean(np.nansum(values, axis=2), count), low, high, count)


def resamples(n: int, n_resamples: int, seed: int) -> Counts:
    """Which of n examples each bootstrap resample draws, [n_resamples, n]."""
    if n_resamples < 1:
        raise ExegeteError(f"n_resamples: expected at least 1, got {n_resamples}")
    generator = np.random.default_rng(seed)
    return generator.integers(max(n, 1), size=(n_resamples, n))


def intervals(values: Floats, drawn: Counts) -> tuple[Floats, Floats]:
    """Percentile bootstrap interval of the mean of `values` [R, C, N] over N, without NaN: low and high, [R, C].

    `drawn` [resamples, N] are the examples of each resample; one that draws no defined example is left out.
    """
    methods, metrics, examples = values.shape
    flat = values.reshape(methods * metrics, examples)
    defined = np.isfinite(flat)
    filled = np.where(defined, flat, 0.0)
    means = [_resampled(filled, defined, drawn[start : start + _CHUNK]) for start in range(0, len(drawn), _CHUNK)]
    low, high = _percentiles(np.concatenate(means))
    return low.reshape(methods, metrics), high.reshape(methods, metrics)


def ranks(board: Leaderboard) -> Counts:
    """The place of each method by each metric, [R, C]: 1 is best, ties share it, the next is one more; 0 is NaN."""
    places = np.zeros(board.mean.shape, dtype=np.int64)
    for column, card in enumerate(board.cards):
        goodness = board.mean[:, column] if card.higher_is_better else -board.mean[:, column]
        known = np.isfinite(goodness)
        distinct = np.unique(goodness[known])
        places[known, column] = len(distinct) - np.searchsorted(distinct, goodness[known])
    return places


def best(board: Leaderboard) -> NDArray[np.bool_]:
    """Which methods are best by each metric, [R, C]; ties are all best."""
    return np.equal(ranks(board), 1)


def second(board: Leaderboard) -> NDArray[np.bool_]:
    """Which methods come next after the best by each metric, [R, C]."""
    return np.equal(ranks(board), 2)


def _check(results: pd.DataFrame, cards: Sequence[MetricCard], example: str) -> None:
    missing = [name for name in ("method", example, *(card.name for card in cards)) if name not in results.columns]
    if missing:
        raise ExegeteError(f"results: expected a column for each of {missing}, got {list(results.columns)}")
    twice = results.duplicated(["method", example])
    if twice.any():
        row = results[twice].iloc[0]
        raise ExegeteError(f"results: method {row['method']!r} has more than one row for example {row[example]!r}")


def _cube(results: pd.DataFrame, cards: Sequence[MetricCard], example: str) -> Floats:
    import pandas as pd

    rows, methods = pd.factorize(results["method"])
    columns, examples = pd.factorize(results[example])
    values = np.full((len(methods), len(cards), len(examples)), np.nan)
    for index, card in enumerate(cards):
        values[rows, index, columns] = results[card.name].to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _mean(total: Floats, count: Counts | Floats) -> Floats:
    mean = np.full(total.shape, np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def _resampled(filled: Floats, defined: NDArray[np.bool_], drawn: Counts) -> Floats:
    n = filled.shape[1]
    offsets = np.arange(len(drawn))[:, None] * n
    times = np.bincount((drawn + offsets).ravel(), minlength=len(drawn) * n).reshape(len(drawn), n).astype(np.float64)
    return _mean(times @ filled.T, times @ defined.T.astype(np.float64))


def _percentiles(means: Floats) -> tuple[Floats, Floats]:
    bounds = np.full((2, means.shape[1]), np.nan)
    known = np.isfinite(means).any(axis=0)
    tail = (100.0 - CONFIDENCE) / 2
    if known.any():
        bounds[:, known] = np.nanpercentile(means[:, known], [tail, 100.0 - tail], axis=0)
    return bounds[0], bounds[1]
