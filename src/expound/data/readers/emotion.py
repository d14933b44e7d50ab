"""Emotion: English tweets labeled with six basic emotions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Row, make_row, read_text, require_label, require_text, split_lines
from expound.data.readers.layouts import FilePerSplit


@dataclass(frozen=True, kw_only=True)
class Emotion(FilePerSplit):
    """Reads `TEXT;LABEL` lines; the classes have the order of the copy on the hub."""

    card: ClassVar[DataCard] = DataCard(
        name="emotion", what="tweets in six classes: sadness, joy, love, anger, fear, surprise",
        form="emotion:FOLDER with train.txt, val.txt, test.txt, a line is TEXT;LABEL", source="Saravia et al. 2018",
        license="research use", example="emotion:corpora/emotion",
    )  # fmt: skip
    names: ClassVar = {"train": ("train.txt",), "dev": ("val.txt", "dev.txt"), "test": ("test.txt",)}
    labels: ClassVar = ("sadness", "joy", "love", "anger", "fear", "surprise")

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file."""
        for where, line in split_lines(read_text(path), str(path)):
            text, _, label = line.rpartition(";")
            row = make_row((require_text(text, "text", where), None))
            yield row | {"label": require_label(label.strip(), self.labels, where)}
