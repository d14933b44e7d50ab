"""Text files in which stars mark the evidence: `good: a *moving film* about nothing`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from expound import ExpoundError
from expound.data import DataCard, DividedFile, make_text_features, read_text, require_text, split_lines

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class Starred(DividedFile):
    """Reads `LABEL: text` lines; the words between two stars are the rationale, and the stars are removed."""

    card: ClassVar = DataCard(
        name="starred",
        what="any classification in a text file, with stars around the evidence",
        form="starred:FILE, a line is LABEL: text; divided by a hash of text and seed, split all is everything",
        source="yours",
        license="the file's",
        example="starred:reviews.txt",
    )

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, dict[str, Any]]]]:
        """Return the column types, and each line as a row with its text, by which the file is divided."""
        lines = list(_read_lines(path))
        names = sorted({label for label, _, _ in lines})
        rows = []
        for label, text, rationale in lines:
            rows.append((text, {"text": text, "label": names.index(label), "rationale": rationale}))
        return make_text_features(names), rows


def _read_lines(path: Path) -> Iterator[tuple[str, str, list[list[int]]]]:
    """Yield the label, text and rationale of every line. Raises ExpoundError, naming the line, for another format."""
    for where, line in split_lines(read_text(path), str(path)):
        label, colon, marked = line.partition(": ")
        pieces = marked.split("*")
        if not colon or len(pieces) % 2 == 0:
            raise ExpoundError(f"{where}: expected LABEL: text with stars in pairs, got {line[:60]!r}")
        text, rationale = "", []
        for number, piece in enumerate(pieces):
            # every second piece is between stars
            if number % 2 and piece:
                rationale.append([len(text), len(text) + len(piece)])
            text += piece
        yield label, require_text(text, "text", where), rationale
