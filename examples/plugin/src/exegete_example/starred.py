"""Text files in which stars mark the evidence: `good: a *moving film* about nothing`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers import Reader, Table
from exegete.data.readers.base import Row, make_text_features, read_text, require_text, split_lines
from exegete.data.splits import DIVIDED, is_in_split
from exegete.errors import ExegeteError


@dataclass(frozen=True, kw_only=True)
class Starred(Reader):
    """A line is `LABEL: text`; what stands between two stars is its rationale, and the stars are taken out."""

    card: ClassVar = DataCard(
        name="starred",
        what="any classification in a text file, with stars around the evidence",
        form="starred:FILE, a line is LABEL: text; divided by a hash of text and seed, split all is everything",
        source="yours",
        licence="the file's",
        example="starred:reviews.txt",
    )

    def splits(self) -> tuple[str, ...]:
        """Always train, dev, test and all."""
        return DIVIDED

    def table(self, split: str) -> Table:
        """The lines of a split, one row each."""
        found = list(_lines(Path(self.path)))
        names = sorted({label for label, _, _ in found})
        rows: list[Row] = [
            {"text": text, "label": names.index(label), "rationale": spans}
            for label, text, spans in found
            if is_in_split(text, split, self.seed)
        ]
        return Table(make_text_features(names), rows)


def _lines(path: Path) -> Iterator[tuple[str, str, list[list[int]]]]:
    """Label, text and spans of every line. Raises ExegeteError, naming the line, for what is not in the format."""
    for where, line in split_lines(read_text(path), str(path)):
        label, colon, marked = line.partition(": ")
        pieces = marked.split("*")
        if not colon or len(pieces) % 2 == 0:
            raise ExegeteError(f"{where}: expected LABEL: text with stars in pairs, got {line[:60]!r}")
        text, spans = "", []
        for number, piece in enumerate(pieces):
            if number % 2 and piece:
                spans.append([len(text), len(text) + len(piece)])
            text += piece
        yield label, require_text(text, "text", where), spans
