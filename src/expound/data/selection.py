"""Selection of the examples of a dataset that are missing in another one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from expound.data.readers.exchanges import exchange_key

if TYPE_CHECKING:
    from datasets import Dataset

TEXTS = ("text", "text_pair")


def exclude_examples(data: Dataset, *others: Dataset) -> Dataset:
    """Return the examples whose texts (image, prompt) are not in any of the other datasets."""
    excluded: set[Hashable] = set()
    for other in others:
        excluded.update(_example_keys(other))
    return data.select(np.flatnonzero([key not in excluded for key in _example_keys(data)]))


def _example_keys(data: Dataset) -> list[Hashable]:
    """Return what identifies each example: its texts, its image, or the prompt and sources of generated text."""
    texts: list[Hashable] = [*zip(*(data[name][:] for name in TEXTS if name in data.column_names), strict=True)]
    if texts:
        return texts
    if "image" in data.column_names:
        return [(image.size, image.tobytes()) for image in data["image"]]
    return [exchange_key(row) for row in data]
