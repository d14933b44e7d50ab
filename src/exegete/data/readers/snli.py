"""Stanford Natural Language Inference: does the hypothesis follow from the premise?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import (
    Reader,
    Row,
    Table,
    field,
    files,
    json_lines,
    need_label,
    need_text,
    text_features,
)

LABELS = ("entailment", "neutral", "contradiction")
NO_GOLD = (None, "", "-")


@dataclass(frozen=True, kw_only=True)
class Snli(Reader):
    """Premise and hypothesis; rows on which the annotators found no majority are left out; no rationales."""

    card: ClassVar[DataCard] = DataCard(
        name="snli", what="entailment between two sentences, three classes",
        form="snli:FOLDER with train.jsonl, dev.jsonl, test.jsonl (those that are there)",
        source="Bowman et al. 2015", licence="CC BY-SA 4.0", example="snli:corpora/snli",
    )  # fmt: skip

    def splits(self) -> tuple[str, ...]:
        """The files that are there."""
        return tuple(self._files())

    def table(self, split: str) -> Table:
        """The sentence pairs of a split, one row each."""
        return Table(text_features(LABELS, pair=True), _rows(self._files()[split]))

    def _files(self) -> dict[str, Path]:
        return files(self.path, train="train.jsonl", dev="dev.jsonl", test="test.jsonl")


def _rows(path: Path) -> Iterator[Row]:
    for where, row in json_lines(path):
        label = field(row, "label", where)
        if label in NO_GOLD:
            continue
        yield {
            "text": need_text(field(row, "premise", where), "premise", where),
            "text_pair": need_text(field(row, "hypothesis", where), "hypothesis", where),
            "label": need_label(label, LABELS, where),
            "rationale": None,
            "rationale_pair": None,
        }
