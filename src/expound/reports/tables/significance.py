"""Paired significance tests over examples for the difference of two rows of a table, and corrections for their number.

A run's metric is a function of sums over examples: a mean, an accuracy, a macro-F1 from the confusion counts, a
correlation from moments. Both tests therefore resample these summands and need no metric of a single example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from expound.errors import ExpoundError

Floats = NDArray[np.float64]
CHUNK = 200


class Summands(NamedTuple):
    """A run's metric: `values` [N, K] of N `examples`; `figure` maps their sums [..., K] to the metric [...]."""

    values: Floats
    figure: Callable[[Floats], Floats]
    examples: NDArray[np.int64]

    def select(self, examples: NDArray[np.int64]) -> Summands:
        """Return the summands of these examples."""
        keep = np.isin(self.examples, examples)
        return Summands(self.values[keep], self.figure, self.examples[keep])


def metric_summands(values: Floats, examples: NDArray[np.int64] | None = None) -> Summands:
    """Return `Summands` whose figure is the mean of `values` [N], one per example, over the finite ones."""
    defined = np.isfinite(values)
    if examples is None:
        examples = np.arange(len(values))
    return Summands(np.stack([np.where(defined, values, 0.0), defined], 1).astype(np.float64), divide_sums, examples)


def paired_test(
    one: Sequence[Summands],
    other: Sequence[Summands],
    method: Literal["bootstrap", "permutation"],
    resamples: int = 2000,
    seed: int = 0,
) -> float:
    """Return the two-sided p-value of the difference of two rows, averaged over runs that are paired by seed.

    `permutation` swaps the two rows' values of an example, in all runs at once. `bootstrap` draws examples with
    replacement and compares the centered differences with the observed one. Only examples of all runs are used.

    Raises:
        ExpoundError: different numbers of runs, or no example in common.
    """
    shared = reduce(np.intersect1d, [run.examples for run in (*one, *other)])
    a, b = (np.stack([run.select(shared).values for run in runs]) for runs in (one, other))
    if a.shape != b.shape or not len(shared):
        raise ExpoundError(f"significance: expected the same runs and examples, got {a.shape[:2]} and {b.shape[:2]}")
    figure, generator = one[0].figure, np.random.default_rng(seed)

    def difference(first: Floats, second: Floats) -> Floats:
        return np.asarray((figure(first) - figure(second)).mean(0))

    total_a, total_b = a.sum(1), b.sum(1)
    observed = float(difference(total_a, total_b))
    if not np.isfinite(observed):
        return float("nan")
    null_differences = []
    # In chunks, since the weights of all resamples at once would take resamples × N floats.
    for start in range(0, resamples, CHUNK):
        size = min(CHUNK, resamples - start)
        if method == "permutation":
            exchanged = generator.integers(2, size=(size, a.shape[1])).astype(np.float64)
            moved = exchanged @ (b - a)
            null_differences.append(difference(total_a[:, None] + moved, total_b[:, None] - moved))
        else:
            weights = generator.multinomial(a.shape[1], np.full(a.shape[1], 1 / a.shape[1]), size=size).astype(float)
            null_differences.append(difference(weights @ a, weights @ b) - observed)
    return float(p_values(np.float64(observed), np.concatenate(null_differences)))


def p_values(observed: Floats | np.float64, null: Floats) -> Floats:
    """Return two-sided p-values of observed differences [...], from differences under the null [resamples, ...]."""
    # The tolerance counts ties that rounding has split; the negation counts NaN as extreme, which is conservative.
    extreme = ~(np.abs(null) < np.abs(observed) - 1e-12)
    # The observed difference counts as one resample, so that no p-value is 0 (Davison and Hinkley 1997, chapter 4).
    return np.asarray((extreme.sum(0) + 1) / (len(null) + 1))


def adjust_p_values(p_values: Sequence[float], method: Literal["holm", "bh", "none"]) -> list[float]:
    """Return p-values adjusted by Holm (family-wise error) or by Benjamini and Hochberg (`bh`, false discoveries)."""
    p = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known], kind="stable")]
    count, adjusted = len(order), p.copy()
    if method == "holm":
        adjusted[order] = np.maximum.accumulate(p[order] * (count - np.arange(count)))
    elif method == "bh":
        adjusted[order] = np.minimum.accumulate((p[order] * count / (1 + np.arange(count)))[::-1])[::-1]
    return [float(value) for value in np.minimum(adjusted, 1.0)]


def divide_sums(sums: Floats) -> Floats:
    """Return the first of two sums [..., 2] divided by the second; NaN where that is 0."""
    return divide_where_defined(sums[..., 0], sums[..., 1])


def divide_where_defined(total: Floats, count: NDArray[np.floating | np.integer]) -> Floats:
    """Return sums divided by the numbers of their summands; NaN for sums of none."""
    mean = np.full(total.shape, np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


LEVEL, POWER = 0.95, 0.8


@dataclass(frozen=True)
class Effect:
    """An effect over seeds and examples.

    Attributes:
        center: the mean over seeds.
        margin: half the width of its 95 % interval; NaN if it is unknown.
        seeds: number of pairs of runs.
        examples: number of examples that each run was judged on; None if it is unknown.
        is_over_examples: whether the interval is over examples, too, and not over seeds alone.
        is_trained: whether a run of the study trained what is compared; if not, one run is enough for a verdict.
    """

    center: float
    margin: float
    seeds: int
    examples: int | None
    is_over_examples: bool
    is_trained: bool = True

    @property
    def detectable(self) -> float:
        """The size of an effect that an interval of this width separates from 0 in 80 of 100 studies."""
        return self.margin * float(1 + norm.ppf(POWER) / norm.ppf((1 + LEVEL) / 2))


def measure_effect(
    by_seed: Floats,
    pairs: Sequence[tuple[Summands, Summands]],
    scale: float,
    judged: int | None = None,
    *,
    is_trained: bool = True,
) -> Effect:
    """Return the effect that several runs show: the mean difference of two figures, with its 95 % interval.

    The margin is the root of the sum of two squared margins: Student's t over seeds, and the jackknife over examples of
    the mean over seeds. One of them is used alone if the other is unknown (one seed; no figures of single examples).

    Args:
        by_seed: the difference of each seed; replaced by that over the examples of all runs if there are `pairs`.
        pairs: the summands of the two figures, per seed; empty if figures of single examples are not stored.
        scale: factor of the table.
        judged: number of examples, for figures without `pairs`.
        is_trained: whether a run of the study trained what is compared.

    Raises:
        ExpoundError: the runs have no example in common.
    """
    examples, over_examples = judged, np.nan
    if pairs:
        shared = pairs[0][0].examples
        for run in chain.from_iterable(pairs):
            shared = np.intersect1d(shared, run.examples)
        if not len(shared):
            raise ExpoundError("the runs of a claim have no example in common")
        examples = len(shared)
        by_seed, by_left_out = np.zeros(len(pairs)), np.zeros((len(pairs), examples))
        for at, pair in enumerate(pairs):
            one, other = pair[0].select(shared), pair[1].select(shared)
            total, other_total = one.values.sum(0), other.values.sum(0)
            by_seed[at] = one.figure(total) - other.figure(other_total)
            by_left_out[at] = one.figure(total - one.values) - other.figure(other_total - other.values)
        jackknife = by_left_out.mean(0)
        variance = (examples - 1) * ((jackknife - jackknife.mean()) ** 2).mean()
        over_examples = float(norm.ppf((1 + LEVEL) / 2) * variance**0.5)
    seeds, over_seeds = len(by_seed), np.nan
    if seeds > 1:
        over_seeds = float(student.ppf((1 + LEVEL) / 2, seeds - 1) * by_seed.std(ddof=1) / seeds**0.5)
    margins = np.array([over_seeds, over_examples])
    known = margins[np.isfinite(margins)]
    margin = float(np.linalg.norm(known)) if len(known) else np.nan
    return Effect(float(by_seed.mean()) * scale, margin * scale, seeds, examples, bool(pairs), is_trained)
