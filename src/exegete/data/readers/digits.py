"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import PIL.Image
from datasets import ClassLabel, Features, Image
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from exegete.data.cards import DataCard
from exegete.data.readers.base import Reader, Row, Table

BOUNDS = {"train": 1297, "dev": 1547, "test": 1797}


@dataclass(frozen=True, kw_only=True)
class Digits(Reader):
    """1,797 images of 8×8 pixels, grey as RGB, in 10 classes: 1,297 train, 250 dev, 250 test by a seeded shuffle."""

    card: ClassVar[DataCard] = DataCard(
        name="digits",
        what="real 8×8 images of handwritten digits, 10 classes",
        form="digits",
        source="Alpaydin and Kaynak 1998, as shipped with scikit-learn",
        licence="CC BY 4.0",
        example="digits",
    )
    needs_path: ClassVar[bool] = False

    def splits(self) -> tuple[str, ...]:
        """Always train, dev and test."""
        return tuple(BOUNDS)

    def table(self, split: str) -> Table:
        """One row an image."""
        data = load_digits()
        order = np.random.default_rng(self.seed).permutation(len(data.target))
        edges = dict(zip(BOUNDS, pairwise([0, *BOUNDS.values()]), strict=True))
        features = Features({"image": Image(), "label": ClassLabel(names=[str(digit) for digit in range(10)])})
        return Table(features, _rows(data, order[slice(*edges[split])]))


def _rows(data: Any, chosen: NDArray[np.int64]) -> Iterator[Row]:
    for i in chosen:
        grey = np.round(data.images[i] * (255 / 16)).astype(np.uint8)
        yield {"image": PIL.Image.fromarray(grey).convert("RGB"), "label": int(data.target[i])}
