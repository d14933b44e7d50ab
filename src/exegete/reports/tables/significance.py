"""Is a difference between two rows of a table more than chance? Paired tests over examples, corrected for their number.

A run's figure is a function of sums over examples: a mean, an accuracy, a macro-F1 from the confusion counts, a
correlation from moments. So both tests resample the summands and never need the figure of a single example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from exegete.errors import ExegeteError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
CHUNK = 200


class Summands(NamedTuple):
    """A run's figure as summands [N, K] of N `examples`, and `figure`, from sums [..., K] to the figure [...]."""

    values: Floats
    figure: Callable[[Floats], Floats]
    examples: NDArray[np.int64]

    def select(self, examples: NDArray[np.int64]) -> Summands:
        """Of these examples alone."""
        keep = np.isin(self.examples, examples)
        return Summands(self.values[keep], self.figure, self.examples[keep])


def metric_summands(values: Floats, examples: NDArray[np.int64] | None = None) -> Summands:
    """The mean of an example-wise metric [N] over the examples where it is defined."""
    defined = np.isfinite(values)
    at = np.arange(len(values)) if examples is None else examples
    return Summands(np.stack([np.where(defined, values, 0.0), defined], 1).astype(np.float64), _ratio, at)


def prediction_summands(figure: str, predictions: pd.DataFrame) -> Summands:
    """A figure of the model: `accuracy`, `f1_macro`, `pearson` or `rmse`; see `exegete.training.loop.evaluation.score`.

    Raises:
        ExegeteError: a figure that is no such sum, or examples without labels.
    """
    if "label" not in predictions.columns or figure not in ("accuracy", "f1_macro", "pearson", "rmse"):
        raise ExegeteError(f"significance of {figure!r}: expected an explainer's metric, accuracy, f1_macro or pearson")
    predicted = np.stack(predictions["predicted"].to_list()).astype(np.float64)
    labels = predictions["label"].to_numpy()
    ones, at = np.ones(len(labels)), predictions["example"].to_numpy()
    if figure in ("pearson", "rmse"):
        x, y = predicted[:, 0], labels.astype(np.float64)
        if figure == "rmse":
            return Summands(np.stack([(x - y) ** 2, ones], 1), lambda sums: np.sqrt(_ratio(sums)), at)
        return Summands(np.stack([x, y, x * y, x * x, y * y, ones], 1), _pearson, at)
    chosen = predicted.argmax(1)
    if figure == "accuracy":
        return Summands(np.stack([chosen == labels, ones], 1).astype(np.float64), _ratio, at)
    classes = predicted.shape[1]
    counts = np.zeros((len(labels), classes * classes))
    counts[np.arange(len(labels)), labels.astype(int) * classes + chosen] = 1
    return Summands(counts, _macro_f1, at)


def paired_test(
    one: Sequence[Summands],
    other: Sequence[Summands],
    method: Literal["bootstrap", "permutation"],
    resamples: int = 2000,
    seed: int = 0,
) -> float:
    """The two-sided p-value of the difference of two rows' figures, mean over runs that are paired by seed.

    `permutation` exchanges the two rows' answers to an example, in all runs at once; `bootstrap` draws examples with
    replacement and asks how often the difference moves by as much as it is. Only examples that all runs have count.

    Raises:
        ExegeteError: not as many runs on one side as on the other, or no example in common.
    """
    shared = reduce(np.intersect1d, [run.examples for run in (*one, *other)])
    a, b = (np.stack([run.select(shared).values for run in runs]) for runs in (one, other))
    if a.shape != b.shape or not len(shared):
        raise ExegeteError(f"significance: expected the same runs and examples, got {a.shape[:2]} and {b.shape[:2]}")
    figure, generator = one[0].figure, np.random.default_rng(seed)

    def difference(first: Floats, second: Floats) -> Floats:
        return np.asarray((figure(first) - figure(second)).mean(0))

    total_a, total_b = a.sum(1), b.sum(1)
    found = float(difference(total_a, total_b))
    if not np.isfinite(found):
        return float("nan")
    drawn = []
    for start in range(0, resamples, CHUNK):
        size = min(CHUNK, resamples - start)
        if method == "permutation":
            exchanged = generator.integers(2, size=(size, a.shape[1])).astype(np.float64)
            moved = exchanged @ (b - a)
            drawn.append(difference(total_a[:, None] + moved, total_b[:, None] - moved))
        else:
            weights = generator.multinomial(a.shape[1], np.full(a.shape[1], 1 / a.shape[1]), size=size).astype(float)
            drawn.append(difference(weights @ a, weights @ b) - found)
    return float(p_values(np.float64(found), np.concatenate(drawn)))


def p_values(found: Floats | np.float64, drawn: Floats) -> Floats:
    """Two-sided p-values of differences `found` [...], from differences `drawn` [resamples, ...] were there none."""
    extreme = ~(np.abs(drawn) < np.abs(found) - 1e-12)
    return np.asarray((extreme.sum(0) + 1) / (len(drawn) + 1))


def adjust_p_values(p_values: Sequence[float], method: Literal["holm", "bh", "none"]) -> list[float]:
    """Adjusted p-values: Holm (family-wise error) or Benjamini and Hochberg (false discovery rate); NaN stays."""
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
    """Mean F1 of the classes that are predicted or true at least once."""
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
