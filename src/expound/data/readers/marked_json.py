"""Rationales that people marked in Label Studio or Argilla."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.argilla import read_records
from expound.data.readers.base import Row, parse_json, read_text
from expound.data.readers.label_studio import read_tasks
from expound.data.readers.layouts import DividedFile
from expound.data.readers.marked import MAJORITY, MarkedExample, make_marked_table
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class MarkedJson(DividedFile):
    """Reads the JSON export of an annotation tool.

    Args:
        parse: converts the JSON to examples; it also takes the path, for errors.
        share: a character is evidence if at least this share of an example's annotators marked it.
    """

    parse: ClassVar[Callable[[Any, str], list[MarkedExample]]]
    share: float = MAJORITY

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the column types, and the marked examples, each after its first text, which decides its split."""
        examples = type(self).parse(parse_json(read_text(path), self.path), self.path)
        if not examples:
            raise ExpoundError(f"{path} is empty: it has no examples")
        features, rows = make_marked_table(examples, self.share)
        return features, ((row["text"], row) for row in rows)


@dataclass(frozen=True, kw_only=True)
class LabelStudio(MarkedJson):
    """Reads Label Studio's export in the format JSON."""

    card: ClassVar[DataCard] = DataCard(
        name="label_studio", what="texts and pairs with spans marked in Label Studio (export format JSON)",
        form="label_studio:FILE, with ?share=0.5 of the annotators who must agree",
        source="yours, or exported from a study of `expound serve`", license="the file's",
        example="label_studio:export.json",
    )  # fmt: skip
    parse: ClassVar = staticmethod(read_tasks)


@dataclass(frozen=True, kw_only=True)
class Argilla(MarkedJson):
    """Reads records of Argilla 2, exported as JSON."""

    card: ClassVar[DataCard] = DataCard(
        name="argilla", what="texts and pairs with spans marked in Argilla 2 (records.to_json)",
        form="argilla:FILE, with ?share=0.5 of the annotators who must agree",
        source="yours, or exported from a study of `expound serve`", license="the file's",
        example="argilla:records.json",
    )  # fmt: skip
    parse: ClassVar = staticmethod(read_records)
