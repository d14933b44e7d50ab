"""Natural language inference: does the hypothesis follow from the premise? SNLI, MultiNLI and XNLI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import Row, field, json_lines, need_label, need_text, read, row_of, tab_separated
from exegete.data.readers.layouts import FileASplit, files
from exegete.errors import ExegeteError

LABELS = ("entailment", "neutral", "contradiction")
NO_GOLD = (None, "", "-")
KEYS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypo", "label"), ("premise", "hypothesis", "label"))
"""Columns of premise, hypothesis and label: in the first releases, in XNLI's training data, on the hub."""


@dataclass(frozen=True, kw_only=True)
class Snli(FileASplit):
    """Premise and hypothesis; rows on which the annotators found no majority are left out; no rationales."""

    card: ClassVar[DataCard] = DataCard(
        name="snli", what="entailment between two sentences, three classes: SNLI, MultiNLI",
        form="snli:FOLDER with train.jsonl, dev.jsonl, test.jsonl or snli_1.0_*.jsonl or multinli_1.0_*.jsonl",
        source="Bowman et al. 2015; Williams et al. 2018", licence="CC BY-SA 4.0; MultiNLI: OANC and others",
        example="snli:corpora/snli",
    )  # fmt: skip
    names: ClassVar = {
        "train": ("train.jsonl", "snli_1.0_train.jsonl", "multinli_1.0_train.jsonl"),
        "dev": ("dev.jsonl", "snli_1.0_dev.jsonl", "multinli_1.0_dev_matched.jsonl"),
        "test": ("test.jsonl", "snli_1.0_test.jsonl"),
    }
    labels: ClassVar = LABELS
    pairs: ClassVar = True

    def rows(self, path: Path) -> Iterator[Row]:
        """The sentence pairs with a gold label."""
        return _pairs(json_lines(path))


@dataclass(frozen=True, kw_only=True)
class Xnli(FileASplit):
    """The pairs of one `language`; train is MultiNLI as XNLI's authors had it translated."""

    card: ClassVar[DataCard] = DataCard(
        name="xnli", what="entailment between two sentences in 15 languages, three classes",
        form="xnli:FOLDER?language=CODE with xnli.dev.tsv, xnli.test.tsv (or .jsonl), multinli.train.CODE.tsv",
        source="Conneau et al. 2018", licence="CC BY-NC 4.0", example="xnli:corpora/XNLI-1.0?language=sw",
    )  # fmt: skip
    labels: ClassVar = LABELS
    pairs: ClassVar = True
    language: str = "en"

    def files(self) -> dict[str, Path]:
        """The files of XNLI, and the training file of this language."""
        names = {split: [f"xnli.{split}.tsv", f"xnli.{split}.jsonl"] for split in ("dev", "test")}
        return files(self.path, {"train": [f"multinli.train.{self.language}.tsv"]} | names)

    def rows(self, path: Path) -> Iterator[Row]:
        """The pairs of the language. Raises ExegeteError where there is none, naming the languages there are."""
        rows = list(json_lines(path) if path.suffix == ".jsonl" else tab_separated(read(path), str(path)))
        mine = [row for row in rows if row[1].get("language", self.language) == self.language]
        if not mine:
            there = sorted({str(row.get("language")) for _, row in rows})
            raise ExegeteError(f"{path} has no rows in the language {self.language!r}; it has: {', '.join(there)}")
        return _pairs(mine)


def _pairs(rows: Iterable[tuple[str, Row]]) -> Iterator[Row]:
    for where, row in rows:
        premise, hypothesis, gold = next((keys for keys in KEYS if keys[1] in row), KEYS[-1])
        label = field(row, gold, where)
        if label in NO_GOLD:
            continue
        texts = (need_text(field(row, name, where), name, where) for name in (premise, hypothesis))
        label = need_label("contradiction" if label == "contradictory" else label, LABELS, where)
        yield row_of(*((text, None) for text in texts)) | {"label": label}
