"""Figures of a model's predictions as functions of sums over examples, which significance tests resample."""

from __future__ import annotations

import numpy as np
import pandas as pd

from expound.errors import ExpoundError
from expound.reports.tables.significance import Floats, Summands, divide_sums, metric_summands

PREDICTION_FIGURES = ("accuracy", "f1_macro", "pearson", "rmse")


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
            return Summands(np.stack([(x - y) ** 2, ones], 1), lambda sums: np.sqrt(divide_sums(sums)), examples)
        return Summands(np.stack([x, y, x * y, x * x, y * y, ones], 1), _pearson, examples)
    predicted_class = predicted.argmax(1)
    if figure == "accuracy":
        return Summands(np.stack([predicted_class == labels, ones], 1).astype(np.float64), divide_sums, examples)
    classes = predicted.shape[1]
    # Each example is one count in the confusion matrix, flattened to [classes * classes].
    counts = np.zeros((len(labels), classes * classes))
    counts[np.arange(len(labels)), labels.astype(int) * classes + predicted_class] = 1
    return Summands(counts, _macro_f1, examples)


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
