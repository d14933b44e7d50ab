"""Quality estimation of WMT: machine translations, the share of edits they needed, and tags of bad words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    NUMBER,
    Row,
    Side,
    make_row,
    make_text_features,
    read_text,
    require_number,
    require_text,
)
from expound.data.readers.layouts import FilePerSplit
from expound.data.readers.mlqe import parse_bad_words
from expound.data.spans import find_words, merge_marked_words
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features

COLUMNS = {
    "src": ("src",),
    "mt": ("mt",),
    "hter": ("hter",),
    "tags": ("tags", "mt_tags"),
    "source_tags": ("source_tags", "src_tags"),
}
"""Suffixes of the files of a split."""


@dataclass(frozen=True, kw_only=True)
class WmtQe(FilePerSplit):
    """Reads tokenized sources and translations; the label is HTER, if its file exists (task 1).

    The words tagged BAD are the rationale of each text with a file of tags (task 2); others are null. Tags are
    for words (to 2017), words and the gaps around them (from 2018), or words and the sentence's end (from 2022).
    """

    card: ClassVar[DataCard] = DataCard(
        name="wmt_qe", what="quality of machine translations (HTER), word tags as rationales; tasks 1 and 2 of WMT",
        form="wmt_qe:FOLDER with SPLIT.src, SPLIT.mt, and SPLIT.hter, SPLIT.source_tags, SPLIT.tags where there are",
        source="Specia et al. 2018, 2020; Zerva et al. 2022", license="that of each year's task",
        example="wmt_qe:corpora/task2_en-de",
    )  # fmt: skip
    names: ClassVar = {split: (f"{split}.src", f"{split}/{split}.src") for split in ("train", "dev", "test")}

    def features(self, path: Path) -> Features:
        """Return the column types of pairs, with a number as label if the HTER file exists."""
        return make_text_features(NUMBER if path.with_suffix(".hter").is_file() else None, pair=True)

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a split; line n of each of its files belongs to row n."""
        columns = {}
        for name, names in COLUMNS.items():
            column = _read_column(path, names)
            if column is not None:
                columns[name] = column
        if "mt" not in columns:
            raise ExpoundError(f"expected a file at {str(path.with_suffix('.mt'))!r}, found nothing")
        for cells in zip(*columns.values(), strict=True):
            line = dict(zip(columns, cells, strict=True))
            source = _make_side(line["src"], line.get("source_tags"))
            row = make_row(source, _make_side(line["mt"], line.get("tags")))
            if "hter" in line:
                where, value = line["hter"]
                row["label"] = require_number(value, "hter", where)
            yield row


def _read_column(path: Path, names: Iterable[str]) -> list[tuple[str, str]] | None:
    """Return (place for errors, line) of the first existing file. Raises ExpoundError if its length differs."""
    for name in names:
        file = path.with_suffix(f".{name}")
        if not file.is_file():
            continue
        lines = read_text(file).removesuffix("\n").split("\n")
        count = len(read_text(path).removesuffix("\n").split("\n"))
        if len(lines) != count:
            raise ExpoundError(f"{file}: expected the {count} lines of {path.name}, got {len(lines)}")
        return [(f"{file}, line {number}", line.removesuffix("\r")) for number, line in enumerate(lines, start=1)]
    return None


def _make_side(line: tuple[str, str], tags: tuple[str, str] | None) -> Side:
    text = require_text(line[1], "text", line[0])
    if tags is None:
        return text, None
    spans = find_words(text)
    return text, merge_marked_words(spans, parse_bad_words(tags[1].split(), len(spans), tags[0]))
