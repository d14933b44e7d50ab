"""Rationales that people marked in Label Studio or Argilla."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from exegete.data.argilla import read_records
from exegete.data.cards import DataCard
from exegete.data.label_studio import read_tasks
from exegete.data.marked import MAJORITY, Marked, marked_table
from exegete.data.readers.base import Reader, Table, from_json, read
from exegete.data.splits import DIVIDED, belongs


@dataclass(frozen=True, kw_only=True)
class MarkedJson(Reader):
    """One JSON file, divided 80/10/10 by a hash of the first text and the seed; `all` is the whole file.

    `share`: a character is evidence when at least this share of an example's people marked it.
    """

    share: float = MAJORITY

    def splits(self) -> tuple[str, ...]:
        """The parts of a divided file."""
        return DIVIDED

    def table(self, split: str) -> Table:
        """The marked examples of a split, one row each."""
        examples = self.parsed(from_json(read(Path(self.path)), self.path))
        whole = marked_table(examples, self.share)
        chosen = [e for e in examples if split == "all" or belongs(e.texts[0], split, self.seed)]
        texts = {id(example) for example in chosen}
        rows = [row for example, row in zip(examples, whole.rows, strict=True) if id(example) in texts]
        return Table(whole.features, rows)

    @abstractmethod
    def parsed(self, content: Any) -> list[Marked]:
        """The examples of the file's JSON."""


@dataclass(frozen=True, kw_only=True)
class LabelStudio(MarkedJson):
    """Label Studio's export in the format JSON."""

    card: ClassVar[DataCard] = DataCard(
        name="label_studio", what="texts and pairs with spans marked in Label Studio (export format JSON)",
        form="label_studio:FILE, with ?share=0.5 of the annotators who must agree",
        source="yours, or exported from a study of `exegete serve`", licence="the file's",
        example="label_studio:export.json",
    )  # fmt: skip

    def parsed(self, content: Any) -> list[Marked]:
        """The marked examples of Label Studio's tasks."""
        return read_tasks(content, self.path)


@dataclass(frozen=True, kw_only=True)
class Argilla(MarkedJson):
    """Records of Argilla 2 exported as JSON."""

    card: ClassVar[DataCard] = DataCard(
        name="argilla", what="texts and pairs with spans marked in Argilla 2 (records.to_json)",
        form="argilla:FILE, with ?share=0.5 of the annotators who must agree",
        source="yours, or exported from a study of `exegete serve`", licence="the file's",
        example="argilla:records.json",
    )  # fmt: skip

    def parsed(self, content: Any) -> list[Marked]:
        """The marked examples of Argilla's records."""
        return read_records(content, self.path)
