"""Natural language inference, whether a hypothesis follows from a premise: SNLI, MultiNLI and XNLI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import (
    Row,
    get_field,
    make_row,
    parse_tsv,
    read_json_lines,
    read_text,
    require_label,
    require_text,
)
from expound.data.readers.layouts import FilePerSplit, find_split_files
from expound.errors import ExpoundError

LABELS = ("entailment", "neutral", "contradiction")
NO_GOLD = (None, "", "-")
KEYS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypo", "label"), ("premise", "hypothesis", "label"))
"""Columns of premise, hypothesis and label: in the first releases, in XNLI's training data, on the hub."""


@dataclass(frozen=True, kw_only=True)
class Snli(FilePerSplit):
    """Reads premise and hypothesis, without rationales. Rows without a majority label are left out."""

    card: ClassVar[DataCard] = DataCard(
        name="snli", what="entailment between two sentences, three classes: SNLI, MultiNLI",
        form="snli:FOLDER with train.jsonl, dev.jsonl, test.jsonl or snli_1.0_*.jsonl or multinli_1.0_*.jsonl",
        source="Bowman et al. 2015; Williams et al. 2018", license="CC BY-SA 4.0; MultiNLI: OANC and others",
        example="snli:corpora/snli",
    )  # fmt: skip
    names: ClassVar = {
        "train": ("train.jsonl", "snli_1.0_train.jsonl", "multinli_1.0_train.jsonl"),
        "dev": ("dev.jsonl", "snli_1.0_dev.jsonl", "multinli_1.0_dev_matched.jsonl"),
        "test": ("test.jsonl", "snli_1.0_test.jsonl"),
    }
    labels: ClassVar = LABELS
    pairs: ClassVar = True

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the pairs with a gold label."""
        return _make_rows(read_json_lines(path))


@dataclass(frozen=True, kw_only=True)
class Xnli(FilePerSplit):
    """Reads the pairs of one `language`; train is XNLI's machine translation of MultiNLI."""

    card: ClassVar[DataCard] = DataCard(
        name="xnli", what="entailment between two sentences in 15 languages, three classes",
        form="xnli:FOLDER?language=CODE with xnli.dev.tsv, xnli.test.tsv (or .jsonl), multinli.train.CODE.tsv",
        source="Conneau et al. 2018", license="CC BY-NC 4.0", example="xnli:corpora/XNLI-1.0?language=sw",
    )  # fmt: skip
    labels: ClassVar = LABELS
    pairs: ClassVar = True
    language: str = "en"

    def find_files(self) -> dict[str, Path]:
        """Return the files of XNLI, and the training file of this language, by split."""
        names = {
            "train": [f"multinli.train.{self.language}.tsv"],
            "dev": ["xnli.dev.tsv", "xnli.dev.jsonl"],
            "test": ["xnli.test.tsv", "xnli.test.jsonl"],
        }
        return find_split_files(self.path, names)

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the pairs of the language. Raises ExpoundError, naming the available languages, for another."""
        rows = list(read_json_lines(path) if path.suffix == ".jsonl" else parse_tsv(read_text(path), str(path)))
        pairs = [row for row in rows if row[1].get("language", self.language) == self.language]
        if not pairs:
            languages = sorted({str(row.get("language")) for _, row in rows})
            raise ExpoundError(f"{path} has no rows in the language {self.language!r}; it has: {', '.join(languages)}")
        return _make_rows(pairs)


def _make_rows(rows: Iterable[tuple[str, Row]]) -> Iterator[Row]:
    for where, row in rows:
        premise, hypothesis, gold = next((keys for keys in KEYS if keys[1] in row), KEYS[-1])
        label = get_field(row, gold, where)
        if label in NO_GOLD:
            continue
        first = require_text(get_field(row, premise, where), premise, where)
        second = require_text(get_field(row, hypothesis, where), hypothesis, where)
        # XNLI's training files write "contradictory"
        if label == "contradictory":
            label = "contradiction"
        yield make_row((first, None), (second, None)) | {"label": require_label(label, LABELS, where)}
