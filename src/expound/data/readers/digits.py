"""The handwritten digits of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from expound.data.cards import DataCard
from expound.data.readers.base import Reader, Row, Table

BOUNDS = {"train": (0, 1297), "dev": (1297, 1547), "test": (1547, 1797)}


@dataclass(frozen=True, kw_only=True)
class Digits(Reader):
    """Reads 1,797 grey images of 8×8 pixels, as RGB, in 10 classes.

    They are shuffled with the seed and divided into 1,297 train, 250 dev and 250 test images.

    Args:
        turned: give each image four times, rotated by 0, 90, 180 and 270 degrees, with the angle as the label, for
            pretraining (Gidaris et al. 2018).
    """

    card: ClassVar[DataCard] = DataCard(
        name="digits", what="real 8×8 images of handwritten digits, 10 classes",
        form="digits, or digits?turned=true: by how far are they turned?",
        source="Alpaydin and Kaynak 1998, as shipped with scikit-learn", license="CC BY 4.0", example="digits",
    )  # fmt: skip
    needs_path: ClassVar[bool] = False
    turned: bool = False

    def splits(self) -> tuple[str, ...]:
        """Return train, dev and test."""
        return tuple(BOUNDS)

    def table(self, split: str) -> Table:
        """Return one row per image, or four rotated ones."""
        from datasets import ClassLabel, Features, Image
        from sklearn.datasets import load_digits

        data = load_digits()
        order = np.random.default_rng(self.seed).permutation(len(data.target))
        start, end = BOUNDS[split]
        rows, names = _make_rows(data, order[start:end]), list(map(str, range(10)))
        if self.turned:
            rows, names = _rotate_images(rows), ["0", "90", "180", "270"]
        return Table(Features({"image": Image(), "label": ClassLabel(names=names)}), rows)


def _rotate_images(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        for quarters in range(4):
            yield {"image": row["image"].rotate(90 * quarters), "label": quarters}


def _make_rows(data: Any, chosen: NDArray[np.int64]) -> Iterator[Row]:
    from PIL import Image

    for i in chosen:
        grey = np.round(data.images[i] * (255 / 16)).astype(np.uint8)
        yield {"image": Image.fromarray(grey).convert("RGB"), "label": int(data.target[i])}
