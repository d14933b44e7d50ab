"""The examples a masking model learns from and is chosen on: few, spread over the classes, and never the same."""

from __future__ import annotations

import numpy as np
from datasets import ClassLabel, Dataset

from exegete.data.selection import TEXTS
from exegete.errors import ExegeteError


def sample_stratified(data: Dataset, count: int | None, seed: int) -> Dataset:
    """At most `count` rows, drawn by the seed: as many of each class as their shares say; in the data's order.

    Without classes any rows are drawn. A draw of fewer rows is part of a draw of more where there are no classes.
    """
    if count is None or count >= len(data):
        return data
    if count < 1:
        raise ExegeteError(f"expected at least one row to draw, got {count}")
    order = np.random.default_rng(seed).permutation(len(data))
    if not isinstance(data.features.get("label"), ClassLabel):
        return data.select(np.sort(order[:count]))
    labels = np.asarray(data["label"][:])[order]
    place = np.zeros(len(order))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        place[own] = (np.arange(len(own)) + 0.5) / len(own)
    return data.select(np.sort(order[np.argsort(place, kind="stable")[:count]]))


def select_texts(data: Dataset) -> Dataset:
    """Nothing but the columns that are read."""
    names = [name for name in TEXTS if name in data.column_names]
    if not names:
        raise ExegeteError(f"a masking model reads texts; the data has the columns {', '.join(data.column_names)}")
    return data.select_columns(names)
