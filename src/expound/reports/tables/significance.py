"""Paired significance tests over examples for the difference of two rows of a table, and corrections for their number.

A run's metric is a function of sums over examples: a mean, an accuracy, a macro-F1 from the confusion counts, a
correlation from moments. Both tests therefore resample these summands and need no metric of a single example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from expound.errors import ExpoundError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
CHUNK = 200
PREDICTION_FIGURES = ("accuracy", "f1_macro", "pearson", "rmse")


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
    """Return the summands of the mean of an example-wise metric [N] over the examples for which it is defined."""
    defined = np.isfinite(values)
    if examples is None:
        examples = np.arange(len(values))
    return Summands(np.stack([np.where(defined, values, 0.0), defined], 1).astype(np.float64), _ratio, examples)


def prediction_summands(figure: str, predictions: pd.DataFrame) -> Summands:
    """Return the summands of a model's `accuracy`, `f1_macro`, `pearson` or `rmse`.

    Args:
        figure: the metric, computed as in `expound.training.loop.evaluation`.
        predictions: one row per example, with `predicted` [C] and `label`; of generated text with `right` (0 or 1),
            the only figure of which is `accuracy`.

    Raises:
        ExpoundError: another metric, or examples without labels.
    """
    if figure == "accuracy" and "right" in predictions.columns:
        return metric_summands(predictions["right"].to_numpy(np.float64), predictions["example"].to_numpy())
    if "label" not in predictions.columns or figure not in PREDICTION_FIGURES:
        raise ExpoundError(f"significance of {figure!r}: expected an explainer's metric, accuracy, f1_macro or pearson")
    predicted = np.stack(predictions["predicted"].to_list()).astype(np.float64)
    labels = predictions["label"].to_numpy()
    ones, examples = np.ones(len(labels)), predictions["example"].to_numpy()
    if figure in ("pearson", "rmse"):
        x, y = predicted[:, 0], labels.astype(np.float64)
        if figure == "rmse":
            return Summands(np.stack([(x - y) ** 2, ones], 1), lambda sums: np.sqrt(_ratio(sums)), examples)
        return Summands(np.stack([x, y, x * y, x * x, y * y, ones], 1), _pearson, examples)
    predicted_class = predicted.argmax(1)
    if figure == "accuracy":
        return Summands(np.stack([predicted_class == labels, ones], 1).astype(np.float64), _ratio, examples)
    classes = predicted.shape[1]
    # Each example is one count in the confusion matrix, flattened to [classes * classes].
    counts = np.zeros((len(labels), classes * classes))
    counts[np.arange(len(labels)), labels.astype(int) * classes + predicted_class] = 1
    return Summands(counts, _macro_f1, examples)


def paired_test(
    one: Sequence[Summands],
    other: Sequence[Summands],
    method: Literal["bootstrap", "permutation"],
    resamples: int = 2000,
    seed: int = 0,
) -> float:
    """Return the two-sided p-value of the difference of two rows, averaged over runs that are paired by seed.

    `permutation` swaps the two rows' values of an example, in all runs at once. `bootstrap` draws examples with
    replacement and compares the centred differences with the observed one. Only examples of all runs are used.

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


def _ratio(sums: Floats) -> Floats:
    total = np.full(sums.shape[:-1], np.nan)
    np.divide(sums[..., 0], sums[..., 1], out=total, where=sums[..., 1] > 0)
    return total


def _macro_f1(sums: Floats) -> Floats:
    """Return the mean F1 of the classes that occur among predictions or labels."""
    classes = round(sums.shape[-1] ** 0.5)
    counts = sums.reshape(*sums.shape[:-1], classes, classes)
    hits = np.diagonal(counts, axis1=-2, axis2=-1)
    size = counts.sum(-1) + counts.sum(-2)
    f1 = np.divide(2 * hits, size, out=np.zeros_like(size), where=size > 0)
    return np.asarray(f1.sum(-1) / (size > 0).sum(-1))


def _pearson(sums: Floats) -> Floats:
    x, y, xy, xx, yy, n = np.moveaxis(sums, -1, 0)
    below = np.sqrt(np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0))
    r = np.full(below.shape, np.nan)
    np.divide(n * xy - x * y, below, out=r, where=below > 0)
    return r
