"""The topics and reviews of Zhang et al.: csv files without a line of column names, the class first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    Names,
    Row,
    make_row,
    make_text_features,
    read_text,
    require_label,
    require_text,
    split_lines,
)
from expound.data.readers.csv import read_csv_cells
from expound.data.readers.layouts import FilePerSplit
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class Zhang(FilePerSplit):
    """Reads title and text, joined by a space; line ends stay escaped as in the files.

    Classes have the names in `classes.txt`, or are named by their numbers if it is missing (Yelp, Amazon).
    """

    card: ClassVar[DataCard] = DataCard(
        name="zhang", what="AG News, DBpedia, Sogou, Yahoo, Yelp, Amazon as csv without a head line",
        form="zhang:FOLDER with train.csv, test.csv, perhaps classes.txt; lines are CLASS,TITLE,TEXT; ?held_out=0.1",
        source="Zhang et al. 2015", license="that of each corpus; research use", example="zhang:corpora/ag_news_csv",
    )  # fmt: skip
    names: ClassVar = {"train": ("train.csv",), "dev": ("dev.csv", "valid.csv"), "test": ("test.csv",)}

    def features(self, path: Path) -> Features:
        """Return the column types of texts with the classes of the corpus."""
        return make_text_features(self._find_classes()[1])

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file."""
        numbers, _ = self._find_classes()
        for where, (label, *parts) in read_csv_cells(path):
            text = " ".join(filter(str.strip, parts))
            yield make_row((require_text(text, "text", where), None)) | {"label": require_label(label, numbers, where)}

    def _find_classes(self) -> tuple[Names, Names]:
        """Return the class numbers in the files, and the class names: from classes.txt, or the numbers as text."""
        listing = Path(self.path) / "classes.txt"
        if listing.is_file():
            names = [line.strip() for _, line in split_lines(read_text(listing), str(listing))]
            if len(set(names)) < len(names):
                raise ExpoundError(f"{listing}: expected each class once, got: {', '.join(names)}")
            return list(map(str, range(1, len(names) + 1))), names
        numbers: set[str] = set()
        # of all splits, so that a class has the same index in each of them
        for path in self.find_files().values():
            for where, row in read_csv_cells(path):
                if not row[0].isdecimal():
                    raise ExpoundError(f"{where}: expected the number of a class first, got {row[0]!r:.60}")
                numbers.add(row[0])
        ordered = sorted(numbers, key=int)
        return ordered, ordered
