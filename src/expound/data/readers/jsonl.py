"""Files with one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Record, read_json_lines
from expound.data.readers.tabular import Tabular


@dataclass(frozen=True, kw_only=True)
class Jsonl(Tabular):
    """Reads JSON lines. Optional fields may be missing in some objects."""

    suffix: ClassVar[str] = ".jsonl"
    has_equal_columns: ClassVar[bool] = False
    card: ClassVar[DataCard] = DataCard(
        name="jsonl",
        what="any table as JSON lines; rationales as lists of [start, end]; prompts and chats with sources",
        form="jsonl:FILE or jsonl:FOLDER, with ?text_column=... where the names are not the usual ones",
        source="yours", license="the file's", example="jsonl:reviews.jsonl?rationale_column=evidence",
    )  # fmt: skip

    def read_records(self, path: Path) -> Iterator[Record]:
        """Yield the JSON objects of a file."""
        return read_json_lines(path)
