"""Rotten Tomatoes: sentences of film reviews, one file of positive and one of negative sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    Reader,
    Row,
    Table,
    make_row,
    make_text_features,
    read_text,
    require_folder,
    require_text,
    split_lines,
)
from expound.data.splits import DIVIDED

LABELS = ("neg", "pos")
BOUNDS = {"train": (0.0, 0.8), "dev": (0.8, 0.9), "test": (0.9, 1.0), "all": (0.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class RottenTomatoes(Reader):
    """Reads positive, then negative sentences; of each file 80 % are train, 10 % dev, 10 % test, as on the hub."""

    card: ClassVar[DataCard] = DataCard(
        name="rotten_tomatoes", what="film reviews, sentence by sentence, two classes",
        form="rotten_tomatoes:FOLDER with rt-polarity.pos and rt-polarity.neg (Latin-1); split all is everything",
        source="Pang and Lee 2005", license="not stated by the authors; research use",
        example="rotten_tomatoes:corpora/rt-polaritydata",
    )  # fmt: skip

    def splits(self) -> tuple[str, ...]:
        """Return train, dev, test and all."""
        return DIVIDED

    def table(self, split: str) -> Table:
        """Return the sentences of a split."""
        base = require_folder(self.path)
        rows: list[Row] = []
        for label in (1, 0):
            rows += _read_part(base / f"rt-polarity.{LABELS[label]}", label, split)
        return Table(make_text_features(LABELS), rows)


def _read_part(path: Path, label: int, split: str) -> Iterator[Row]:
    sentences = list(split_lines(read_text(path, "latin-1"), str(path)))
    # rounded to the nearest sentence: 5,331 of each class give 4,265 train, 533 dev and 533 test
    first, last = BOUNDS[split]
    start, end = int(len(sentences) * first + 0.5), int(len(sentences) * last + 0.5)
    for where, line in sentences[start:end]:
        yield make_row((require_text(line.strip(), "text", where), None)) | {"label": label}
