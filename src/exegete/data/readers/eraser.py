"""ERASER Movie Reviews: long reviews with the passages that people gave as evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import (
    Reader,
    Row,
    Table,
    field,
    files,
    json_lines,
    listed,
    need_label,
    need_text,
    read,
    text_features,
)
from exegete.data.spans import marked, word_spans
from exegete.errors import ExegeteError

LABELS = ("NEG", "POS")


@dataclass(frozen=True, kw_only=True)
class Eraser(Reader):
    """The document as it is in `docs/`, and all evidence of all annotators as its rationale."""

    card: ClassVar[DataCard] = DataCard(
        name="eraser", what="long film reviews with human rationales",
        form="eraser:FOLDER with train.jsonl, val.jsonl, test.jsonl and docs/",
        source="Zaidan and Eisner 2008; DeYoung et al. 2020", licence="not stated by the authors; research use",
        example="eraser:corpora/movies",
    )  # fmt: skip

    def splits(self) -> tuple[str, ...]:
        """The files that are there."""
        return tuple(self._files())

    def table(self, split: str) -> Table:
        """The reviews of a split, one row each."""
        return Table(text_features(LABELS), self._rows(self._files()[split]))

    def _files(self) -> dict[str, Path]:
        return files(self.path, train="train.jsonl", dev="val.jsonl", test="test.jsonl")

    def _rows(self, path: Path) -> Iterator[Row]:
        for where, row in json_lines(path):
            name = need_text(field(row, "annotation_id", where), "annotation_id", where)
            text = need_text(read(Path(self.path) / "docs" / name), name, where)
            spans = word_spans(text)
            marks = [False] * len(spans)
            for start, end in _evidence(listed(row, "evidences", where), len(spans), where):
                marks[start:end] = [True] * (end - start)
            label = need_label(field(row, "classification", where), LABELS, where)
            yield {"text": text, "label": label, "rationale": marked(spans, marks)}


def _evidence(groups: list[Any], length: int, where: str) -> Iterator[tuple[int, int]]:
    """The token ranges of all evidence, in tokens separated by white space; some published ones are empty."""
    if not all(isinstance(group, list) for group in groups):
        raise ExegeteError(f"{where}: expected a list of lists in 'evidences'")
    for evidence in (evidence for group in groups for evidence in group):
        start, end = field(evidence, "start_token", where), field(evidence, "end_token", where)
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length):
            raise ExegeteError(f"{where}: expected evidence within {length} tokens, got [{start}, {end}]")
        yield start, end
