"""The table of methods and metrics as numbers, without colour or markup: means, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.reports.tables.significance import adjust_p_values, p_values

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

CONFIDENCE = 95.0
LEVEL = 0.05
CONTROL = "random"
_CHUNK = 100


@dataclass(frozen=True, slots=True, eq=False)
class Leaderboard:
    """R methods judged by C metrics: the mean over examples and its 95 % interval.

    `rows` are the methods as files and commands name them, `titles` as people do.
    `mean`, `low`, `high` and `count` are [R, C]; `count` says over how many examples a metric was defined. Where it
    was for none, the numbers are NaN. `best` [R, C]: the best of the column and all that are not told apart from it,
    by a paired bootstrap over the same examples (Holm, 5 %); none where that is every method. Costs are measured for a
    batch and shared out among its examples: they have no interval and no best. `chance` [R]: not
    better than the method `random` by the first metric, by the same test.
    """

    rows: list[str]
    titles: list[str]
    cards: list[MetricCard]
    mean: Floats
    low: Floats
    high: Floats
    count: Counts
    best: Flags
    chance: Flags

    @property
    def without_costs(self) -> Leaderboard:
        """Without the columns of costs."""
        kept = [column for column, card in enumerate(self.cards) if card.family != "cost"]
        names = ("mean", "low", "high", "count", "best")
        columns = {name: getattr(self, name)[:, kept] for name in names}
        return replace(self, cards=[self.cards[column] for column in kept], **columns)


def make_leaderboard(
    results: pd.DataFrame,
    cards: Sequence[MetricCard],
    *,
    titles: Mapping[str, str] = MappingProxyType({}),
    example: str = "example",
    n_resamples: int = 2000,
    seed: int = 0,
) -> Leaderboard:
    """Mean of each metric for each method, with percentile bootstrap intervals over examples.

    `results` has one row for each example (column `example`) and method (column "method"), and a column named as each
    card; NaN marks an example for which the metric is undefined, which is left out. All methods and metrics see the
    same resampled examples, so that their intervals can be compared. The best by the first metric comes first.
    `titles`: methods in people's words, where these are not their names.

    Raises `ExegeteError` for missing columns and for a pair that comes twice.
    """
    _check(results, cards, example)
    rows, values = [str(name) for name in dict.fromkeys(results["method"])], _to_array(results, cards, example)
    count = np.isfinite(values).sum(axis=2)
    mean = _divide_where_defined(np.nansum(values, axis=2), count)
    drawn = _resample_means(values, draw_resamples(values.shape[2], n_resamples, seed))
    low, high = _percentiles(drawn)
    ups = [card.higher_is_better for card in cards]
    costs = [card.family == "cost" for card in cards]
    low[:, costs], high[:, costs] = np.nan, np.nan
    best = [_find_best(mean[:, c], drawn[:, :, c], count[:, c], up=up) for c, up in enumerate(ups)]
    chance = (
        _find_chance_level(rows, mean[:, 0], drawn[:, :, 0], count[:, 0], up=ups[0])
        if ups
        else np.zeros(len(rows), bool)
    )
    order = np.argsort(-mean[:, 0] if ups and ups[0] else mean[:, :1].sum(1), kind="stable")
    marks = np.stack(best, 1) if best else np.zeros(mean.shape, bool)
    marks[:, costs] = False
    names = [rows[row] for row in order]
    numbers = mean[order], low[order], high[order], count[order]
    shown = [titles.get(name, name) for name in names]
    return Leaderboard(names, shown, list(cards), *numbers, marks[order], chance[order])


def draw_resamples(n: int, n_resamples: int, seed: int) -> Counts:
    """Which of n examples each bootstrap resample draws, [n_resamples, n]."""
    if n_resamples < 1:
        raise ExegeteError(f"n_resamples: expected at least 1, got {n_resamples}")
    generator = np.random.default_rng(seed)
    return generator.integers(max(n, 1), size=(n_resamples, n))


def bootstrap_intervals(values: Floats, drawn: Counts) -> tuple[Floats, Floats]:
    """Percentile bootstrap interval of the mean of `values` [R, C, N] over N, without NaN: low and high, [R, C].

    `drawn` [resamples, N] are the examples of each resample; one that draws no defined example is left out.
    """
    low, high = _percentiles(_resample_means(values, drawn))
    return low, high


def _find_best(mean: Floats, drawn: Floats, count: Counts, *, up: bool) -> Flags:
    """Which of R methods are best by a metric or not told apart from the best, unless none of them stands out."""
    known = np.isfinite(mean)
    if not known.any():
        return known
    first = int(np.nanargmax(mean if up else -mean))
    near = known & ~_differ_from(mean, drawn, count, first)
    return near if len(mean) == 1 or (~near & known).any() else np.zeros(len(mean), bool)


def _find_chance_level(rows: Sequence[str], mean: Floats, drawn: Floats, count: Counts, *, up: bool) -> Flags:
    """Which of R methods are not better than the one that is called random; none without it."""
    control = [row for row, name in enumerate(rows) if name.partition("?")[0] == CONTROL]
    if len(control) != 1:
        return np.zeros(len(rows), bool)
    gain = (mean - mean[control[0]]) * (1 if up else -1)
    weak = np.isfinite(gain) & ~(_differ_from(mean, drawn, count, control[0]) & (gain > 0))
    weak[control] = False
    return np.asarray(weak)


def _differ_from(mean: Floats, drawn: Floats, count: Counts, row: int) -> Flags:
    """Which of R methods differ from one by more than chance: `mean` and `count` [R], resampled means [resamples, R].

    No test of n pairs is surer than 2^(1-n), that of signs which all agree.
    """
    found = mean - mean[row]
    p = p_values(found, drawn - drawn[:, [row]] - found)
    p = np.maximum(p, 2.0 ** (1 - np.minimum(count, count[row])))
    p[~np.isfinite(found)] = np.nan
    p[row] = np.nan
    return np.less_equal(adjust_p_values(p.tolist(), "holm"), LEVEL)


def _check(results: pd.DataFrame, cards: Sequence[MetricCard], example: str) -> None:
    missing = [name for name in ("method", example, *(card.name for card in cards)) if name not in results.columns]
    if missing:
        raise ExegeteError(f"results: expected a column for each of {missing}, got {list(results.columns)}")
    twice = results.duplicated(["method", example])
    if twice.any():
        row = results[twice].iloc[0]
        raise ExegeteError(f"results: method {row['method']!r} has more than one row for example {row[example]!r}")


def _to_array(results: pd.DataFrame, cards: Sequence[MetricCard], example: str) -> Floats:
    import pandas as pd

    rows, methods = pd.factorize(results["method"])
    columns, examples = pd.factorize(results[example])
    values = np.full((len(methods), len(cards), len(examples)), np.nan)
    for index, card in enumerate(cards):
        values[rows, index, columns] = results[card.name].to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _divide_where_defined(total: Floats, count: Counts | Floats) -> Floats:
    mean = np.full(total.shape, np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def _resample_means_of_chunk(filled: Floats, defined: NDArray[np.bool_], drawn: Counts) -> Floats:
    n = filled.shape[1]
    offsets = np.arange(len(drawn))[:, None] * n
    times = np.bincount((drawn + offsets).ravel(), minlength=len(drawn) * n).reshape(len(drawn), n).astype(np.float64)
    return _divide_where_defined(times @ filled.T, times @ defined.T.astype(np.float64))


def _resample_means(values: Floats, drawn: Counts) -> Floats:
    """The mean of `values` [R, C, N] over each resample's examples, [resamples, R, C]; NaN where none is defined."""
    methods, metrics, examples = values.shape
    flat = values.reshape(methods * metrics, examples)
    defined = np.isfinite(flat)
    filled = np.where(defined, flat, 0.0)
    means = [
        _resample_means_of_chunk(filled, defined, drawn[start : start + _CHUNK])
        for start in range(0, len(drawn), _CHUNK)
    ]
    return np.concatenate(means).reshape(len(drawn), methods, metrics)


def _percentiles(means: Floats) -> Floats:
    bounds = np.full((2, *means.shape[1:]), np.nan)
    known = np.isfinite(means).any(axis=0)
    tail = (100.0 - CONFIDENCE) / 2
    if known.any():
        bounds[:, known] = np.nanpercentile(means[:, known], [tail, 100.0 - tail], axis=0)
    return bounds
