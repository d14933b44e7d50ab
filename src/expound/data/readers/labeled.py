"""Plain text files with a label at the start of each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Row, is_blank, make_row, make_text_features, read_text, require_text, split_lines
from expound.data.readers.layouts import DividedFile
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class Labeled(DividedFile):
    """Reads `LABEL text` lines; the classes are the labels of the file, sorted. Equal texts share a split.

    Args:
        skip_empty: leave out lines with a label but no text. By default they are an error.
    """

    card: ClassVar[DataCard] = DataCard(
        name="labeled", what="any classification in a plain text file, such as the customer reviews of Hu and Liu",
        form="labeled:FILE, a line is LABEL text; divided by a hash of text and seed, split all is everything",
        source="yours; Hu and Liu 2004", license="the file's",
        example="labeled:corpora/customer-reviews.txt?skip_empty=true",
    )  # fmt: skip
    skip_empty: bool = False

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the labeled lines, divided by their texts."""
        pairs = list(_read_pairs(path, self.skip_empty))
        names = sorted({label for label, _ in pairs})
        rows = [(text, make_row((text, None)) | {"label": names.index(label)}) for label, text in pairs]
        return make_text_features(names), rows


def _read_pairs(path: Path, skip_empty: bool) -> Iterator[tuple[str, str]]:
    for where, line in split_lines(read_text(path), str(path)):
        label, space, text = line.partition(" ")
        if not space or not label:
            raise ExpoundError(f"{where}: expected a label, a space and a text, got {line[:60]!r}")
        if not (skip_empty and is_blank(text)):
            yield label, require_text(text, "text", where)
