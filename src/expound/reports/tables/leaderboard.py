"""The table of methods and metrics as numbers: means over examples, intervals, and which methods are tied best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.reports.tables.significance import adjust_p_values, divide_where_defined, p_values

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

CONFIDENCE = 95.0
LEVEL, POWER = 0.05, 0.8
CONTROL = "random"
CHANCE = "no better than random"
_CHUNK = 100


@dataclass(frozen=True, slots=True, eq=False)
class Leaderboard:
    """R methods judged by C metrics.

    Attributes:
        rows: [R] the methods' names, as files and commands use them; best by the first metric first.
        titles: [R] the methods' names for people.
        cards: [C] the metrics.
        mean: [R, C] over the examples for which a metric is defined; NaN without such examples.
        low: [R, C] lower end of the 95 % bootstrap interval; NaN for costs.
        high: [R, C] its upper end.
        count: [R, C] the number of examples for which a metric is defined.
        best: [R, C] whether a method is the best of its column or not significantly worse (paired bootstrap over the
            same examples, Holm, 5 %); False in the whole column if that holds for every method, and for costs.
        chance: [R, C] whether a method is not better than the method `random` by a metric, by the same test.
        separating: about how many examples would separate the first two methods by the first metric: a paired test of
            these two (5 %) would find a difference as large as the measured one in 80 % of samples of this size. NaN
            without two methods.
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
    separating: float = float("nan")

    @property
    def is_at_chance(self) -> list[bool]:
        """Whether each method is not better than `random` by the first metric; False without metrics."""
        return [bool(row[:1].any()) for row in self.chance]

    @property
    def without_costs(self) -> Leaderboard:
        """The leaderboard without the columns of costs."""
        kept = [column for column, card in enumerate(self.cards) if card.family != "cost"]
        names = ("mean", "low", "high", "count", "best", "chance")
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
    """Return the mean of each metric for each method, with percentile bootstrap intervals over examples.

    Args:
        results: one row per example and method (columns `example` and "method"), one column per card's name; NaN marks
            an example for which the metric is undefined, which is left out.
        cards: the metrics; the first one decides the order of the methods.
        titles: names for people, of methods that have one.
        example: the column that identifies an example.
        n_resamples: bootstrap resamples.
        seed: of the resamples.

    Raises:
        ExpoundError: missing columns, or two rows for one example and method.
    """
    _check(results, cards, example)
    rows, values = [str(name) for name in dict.fromkeys(results["method"])], _to_array(results, cards, example)
    count = np.isfinite(values).sum(axis=2)
    mean = divide_where_defined(np.nansum(values, axis=2), count)
    # All methods and metrics share the resampled examples, so that their differences are paired.
    resampled = _resample_means(values, draw_resamples(values.shape[2], n_resamples, seed))
    low, high = _percentiles(resampled)
    best, chance, order = np.zeros(mean.shape, bool), np.zeros(mean.shape, bool), np.arange(len(rows))
    for column, card in enumerate(cards):
        if card.family == "cost":
            # Costs are measured per batch and divided among its examples, which makes them dependent: no bootstrap.
            low[:, column], high[:, column] = np.nan, np.nan
        else:
            numbers = (mean[:, column], resampled[:, :, column], count[:, column])
            best[:, column] = _find_best(*numbers, up=card.higher_is_better)
            chance[:, column] = _find_chance_level(rows, *numbers, up=card.higher_is_better)
    if cards:
        order = np.argsort(-mean[:, 0] if cards[0].higher_is_better else mean[:, 0], kind="stable")
    separating = float("nan")
    if cards and len(rows) > 1:
        separating = count_separating_examples(values[order[0], 0] - values[order[1], 0])
    names = [rows[row] for row in order]
    return Leaderboard(
        rows=names,
        titles=[titles.get(name, name) for name in names],
        cards=list(cards),
        mean=mean[order],
        low=low[order],
        high=high[order],
        count=count[order],
        best=best[order],
        chance=chance[order],
        separating=separating,
    )


def compute_win_rates(results: pd.DataFrame, cards: Sequence[MetricCard]) -> pd.DataFrame:
    """Return how often each method is better than `random` on the same example, by each metric except costs.

    The columns are `method`, `metric`, `rate`, `low` and `high`: the share of examples, of which ties count half, and
    its 95 % Wilson interval. Scores of `random` choose as many tokens as those of the method, at random. Empty without
    exactly one method `random`.
    """
    import pandas as pd

    rows, values = [str(name) for name in dict.fromkeys(results["method"])], _to_array(results, cards, "example")
    control, found = [row for row, name in enumerate(rows) if name.partition("?")[0] == CONTROL], []
    for column, card in enumerate(cards):
        if card.family == "cost" or len(control) != 1:
            continue
        gains = values[:, column] - values[control[0], column]
        for row, name in enumerate(rows):
            known = gains[row][np.isfinite(gains[row])] * (1 if card.higher_is_better else -1)
            if row != control[0] and len(known):
                rate = float((np.sign(known) + 1).mean() / 2)
                found.append((name, card.name, rate, *wilson_interval(rate, len(known))))
    return pd.DataFrame(found, columns=["method", "metric", "rate", "low", "high"])


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` examples (Wilson 1927)."""
    # Unlike share ± 1.96 standard errors, it stays within [0, 1] and has a width at shares of 0 and 1.
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
    return middle - half, middle + half


def count_separating_examples(differences: Floats) -> float:
    """Return how many examples a paired test needs to find a difference as large as the measured one.

    n = ((z_{1−α/2} + z_{power}) · sd / mean)², for the differences [N] of two methods on the same examples; NaN values
    are left out. Infinite for a mean of 0; NaN for fewer than two examples.
    """
    known = differences[np.isfinite(differences)]
    if len(known) < 2:
        return float("nan")
    mean, deviation = abs(float(known.mean())), float(known.std(ddof=1))
    if mean == 0:
        return float("inf")
    quantile = NormalDist().inv_cdf
    return ((quantile(1 - LEVEL / 2) + quantile(POWER)) * deviation / mean) ** 2


def draw_resamples(n: int, n_resamples: int, seed: int) -> Counts:
    """Return the indices of the examples that each bootstrap resample draws from n, [n_resamples, n]."""
    if n_resamples < 1:
        raise ExpoundError(f"n_resamples: expected at least 1, got {n_resamples}")
    generator = np.random.default_rng(seed)
    return generator.integers(max(n, 1), size=(n_resamples, n))


def bootstrap_intervals(values: Floats, drawn: Counts) -> tuple[Floats, Floats]:
    """Return the 95 % percentile bootstrap interval of the mean of `values` [R, C, N] over N: low and high, [R, C].

    `drawn` [resamples, N]: the examples of each resample, see `draw_resamples`. NaN values are left out, and so are
    resamples without a defined value.
    """
    low, high = _percentiles(_resample_means(values, drawn))
    return low, high


def _find_best(mean: Floats, resampled: Floats, count: Counts, *, up: bool) -> Flags:
    """Return which of R methods are best by a metric or tied with the best; all False if every method is tied."""
    known = np.isfinite(mean)
    if not known.any():
        return known
    first = int(np.nanargmax(mean if up else -mean))
    tied = known & ~_differ_from(mean, resampled, count, first)
    if len(mean) > 1 and not (~tied & known).any():
        return np.zeros(len(mean), bool)
    return tied


def _find_chance_level(rows: Sequence[str], mean: Floats, resampled: Floats, count: Counts, *, up: bool) -> Flags:
    """Return which of R methods are not significantly better than the control; all False without a control."""
    control = [row for row, name in enumerate(rows) if name.partition("?")[0] == CONTROL]
    if len(control) != 1:
        return np.zeros(len(rows), bool)
    gain = mean - mean[control[0]]
    if not up:
        gain = -gain
    weak = np.isfinite(gain) & ~(_differ_from(mean, resampled, count, control[0]) & (gain > 0))
    weak[control] = False
    return np.asarray(weak)


def _differ_from(mean: Floats, resampled: Floats, count: Counts, row: int) -> Flags:
    """Return which of R methods differ significantly from one: `mean`, `count` [R], `resampled` [resamples, R]."""
    differences = mean - mean[row]
    # Centring the resampled differences gives their distribution under the null hypothesis of no difference.
    p = p_values(differences, resampled - resampled[:, [row]] - differences)
    # The bootstrap of few pairs is too sure: a sign test of n pairs has no p-value below 2^(1-n).
    p = np.maximum(p, 2.0 ** (1 - np.minimum(count, count[row])))
    p[~np.isfinite(differences)] = np.nan
    p[row] = np.nan
    return np.less_equal(adjust_p_values(p.tolist(), "holm"), LEVEL)


def _check(results: pd.DataFrame, cards: Sequence[MetricCard], example: str) -> None:
    needed = ["method", example, *(card.name for card in cards)]
    missing = [name for name in needed if name not in results.columns]
    if missing:
        raise ExpoundError(f"results: expected a column for each of {missing}, got {list(results.columns)}")
    twice = results.duplicated(["method", example])
    if twice.any():
        row = results[twice].iloc[0]
        raise ExpoundError(f"results: method {row['method']!r} has more than one row for example {row[example]!r}")


def _to_array(results: pd.DataFrame, cards: Sequence[MetricCard], example: str) -> Floats:
    import pandas as pd

    rows, methods = pd.factorize(results["method"])
    columns, examples = pd.factorize(results[example])
    values = np.full((len(methods), len(cards), len(examples)), np.nan)
    for index, card in enumerate(cards):
        values[rows, index, columns] = results[card.name].to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _resample_means(values: Floats, drawn: Counts) -> Floats:
    """Return the means of `values` [R, C, N] over each resample, [resamples, R, C]; NaN without a defined value."""
    methods, metrics, examples = values.shape
    flat = values.reshape(methods * metrics, examples)
    defined = np.isfinite(flat)
    filled = np.where(defined, flat, 0.0)
    # In chunks, since the counts of all resamples at once would take resamples × N floats.
    means = []
    for start in range(0, len(drawn), _CHUNK):
        part = drawn[start : start + _CHUNK]
        # How often each resample draws each example: sums over resamples are then one matrix product.
        places = part + np.arange(len(part))[:, None] * examples
        times = np.bincount(places.ravel(), minlength=len(part) * examples).reshape(len(part), examples).astype(float)
        means.append(divide_where_defined(times @ filled.T, times @ defined.T.astype(np.float64)))
    return np.concatenate(means).reshape(len(drawn), methods, metrics)


def _percentiles(means: Floats) -> Floats:
    bounds = np.full((2, *means.shape[1:]), np.nan)
    known = np.isfinite(means).any(axis=0)
    tail = (100.0 - CONFIDENCE) / 2
    if known.any():
        bounds[:, known] = np.nanpercentile(means[:, known], [tail, 100.0 - tail], axis=0)
    return bounds
