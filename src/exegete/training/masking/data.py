"""Samples of the data for training masking models."""

from __future__ import annotations

import numpy as np
from datasets import ClassLabel, Dataset

from exegete.data.selection import TEXTS
from exegete.errors import ExegeteError


def sample_stratified(data: Dataset, count: int | None, seed: int) -> Dataset:
    """Return a random sample of at most `count` examples, in proportion to the classes, in the data's order.

    Raises:
        ExegeteError: a count below 1.
    """
    if count is None or count >= len(data):
        return data
    if count < 1:
        raise ExegeteError(f"expected a sample of at least one row, got {count}")
    order = np.random.default_rng(seed).permutation(len(data))
    if not isinstance(data.features.get("label"), ClassLabel):
        return data.select(np.sort(order[:count]))
    # Each example gets its relative rank within its class. The `count` lowest ranks have every class in proportion.
    labels = np.asarray(data["label"][:])[order]
    place = np.zeros(len(order))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        place[own] = (np.arange(len(own)) + 0.5) / len(own)
    return data.select(np.sort(order[np.argsort(place, kind="stable")[:count]]))


def select_texts(data: Dataset) -> Dataset:
    """Return the data with its text columns only."""
    names = [name for name in TEXTS if name in data.column_names]
    if not names:
        raise ExegeteError(f"a masking model reads texts; the data has the columns {', '.join(data.column_names)}")
    return data.select_columns(names)
