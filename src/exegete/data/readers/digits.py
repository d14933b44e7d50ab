"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from exegete.data.cards import DataCard
from exegete.data.readers.base import Reader, Row, Table

BOUNDS = {"train": 1297, "dev": 1547, "test": 1797}


@dataclass(frozen=True, kw_only=True)
class Digits(Reader):
    """1,797 images of 8×8 pixels, grey as RGB, in 10 classes: 1,297 train, 250 dev, 250 test by a seeded shuffle.

    `turned`: each image four times, and the label is by how many degrees it is turned: something to pretrain on
    (Gidaris et al. 2018).
    """

    card: ClassVar[DataCard] = DataCard(
        name="digits", what="real 8×8 images of handwritten digits, 10 classes",
        form="digits, or digits?turned=true: by how far are they turned?",
        source="Alpaydin and Kaynak 1998, as shipped with scikit-learn", licence="CC BY 4.0", example="digits",
    )  # fmt: skip
    needs_path: ClassVar[bool] = False
    turned: bool = False

    def splits(self) -> tuple[str, ...]:
        """Always train, dev and test."""
        return tuple(BOUNDS)

    def table(self, split: str) -> Table:
        """One row an image, or four."""
        from datasets import ClassLabel, Features, Image
        from sklearn.datasets import load_digits

        data = load_digits()
        order = np.random.default_rng(self.seed).permutation(len(data.target))
        edges = dict(zip(BOUNDS, pairwise([0, *BOUNDS.values()]), strict=True))
        names = [str(90 * quarters) for quarters in range(4)] if self.turned else [str(digit) for digit in range(10)]
        rows = _make_rows(data, order[slice(*edges[split])])
        return Table(
            Features({"image": Image(), "label": ClassLabel(names=names)}),
            _rotate_images(rows) if self.turned else rows,
        )


def _rotate_images(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        for quarters in range(4):
            yield {"image": row["image"].rotate(90 * quarters), "label": quarters}


def _make_rows(data: Any, chosen: NDArray[np.int64]) -> Iterator[Row]:
    from PIL import Image

    for i in chosen:
        grey = np.round(data.images[i] * (255 / 16)).astype(np.uint8)
        yield {"image": Image.fromarray(grey).convert("RGB"), "label": int(data.target[i])}
