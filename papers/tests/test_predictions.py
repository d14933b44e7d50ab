"""Figures of predictions against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from expound.errors import ExpoundError
from expound.reports.tables.significance import metric_summands
from expound_papers.tables.predictions import prediction_summands


def predictions(labels, classes):
    return pd.DataFrame({"example": range(len(labels)), "predicted": [np.eye(3)[c] for c in classes], "label": labels})


def test_figures_are_rebuilt_from_sums():
    draw = np.random.default_rng(0)
    labels, classes = draw.integers(3, size=50), draw.integers(2, size=50)
    for name, expected in (
        ("accuracy", (labels == classes).mean()),
        ("f1_macro", f1_score(labels, classes, average="macro")),
    ):
        found = prediction_summands(name, predictions(labels, classes))
        assert found.figure(found.values.sum(0)) == pytest.approx(expected)
    x, y = draw.normal(size=50), draw.normal(size=50)
    frame = pd.DataFrame({"example": range(50), "predicted": [np.array([value]) for value in x], "label": y})
    for name, expected in (("pearson", stats.pearsonr(x, y).statistic), ("rmse", np.sqrt(((x - y) ** 2).mean()))):
        found = prediction_summands(name, frame)
        assert found.figure(found.values.sum(0)) == pytest.approx(expected)
    written = prediction_summands("accuracy", pd.DataFrame({"example": [4, 7, 9], "right": [1.0, 0.0, 1.0]}))
    assert written.figure(written.values.sum(0)) == pytest.approx(2 / 3)
    values = np.array([0.5, np.nan, 1.0])
    assert metric_summands(values).figure(metric_summands(values).values.sum(0)) == pytest.approx(0.75)
    with pytest.raises(ExpoundError, match="exact_match"):
        prediction_summands("exact_match", frame)
