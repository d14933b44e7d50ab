"""Paired significance tests over examples for the difference of two rows of a table, and corrections for their number.

A run's metric is a function of sums over examples: a mean, an accuracy, a macro-F1 from the confusion counts, a
correlation from moments. Both tests therefore resample these summands and need no metric of a single example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    total = np.full(sums.shape[:-1], np.nan)
    np.divide(sums[..., 0], sums[..., 1], out=total, where=sums[..., 1] > 0)
    return total
