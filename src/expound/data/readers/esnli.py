"""e-SNLI: entailment between two sentences, with the words that annotators marked as its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Row, Side, get_field, is_blank, make_row, require_label, require_text
from expound.data.readers.csv import read_csv_rows
from expound.data.readers.layouts import FilePerSplit
from expound.data.readers.marked import MAJORITY
from expound.data.readers.snli import LABELS, NO_GOLD
from expound.data.spans import find_words, vote_on_words
from expound.errors import ExpoundError


@dataclass(frozen=True, kw_only=True)
class Esnli(FilePerSplit):
    """Reads premise and hypothesis, with the words between stars in their marked copies as rationales.

    Punctuation belongs to the word that it touches, as it did for the annotators.

    Args:
        share: a word is evidence if at least this share of the annotators marked it (train has one annotator, dev and
            test have three).
    """

    card: ClassVar[DataCard] = DataCard(
        name="esnli", what="entailment between two sentences, three classes, with the words that people marked",
        form="esnli:FOLDER with esnli_train_1.csv and esnli_train_2.csv, esnli_dev.csv, esnli_test.csv; ?share=0.5",
        source="Camburu et al. 2018", license="MIT", example="esnli:corpora/e-SNLI/dataset",
    )  # fmt: skip
    names: ClassVar = {
        "train": ("esnli_train_1.csv", "esnli_train.csv"), "dev": ("esnli_dev.csv",), "test": ("esnli_test.csv",),
    }  # fmt: skip
    labels: ClassVar = LABELS
    pairs: ClassVar = True
    share: float = MAJORITY

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the pairs with a gold label; train has two files."""
        parts = [path]
        if path.name == "esnli_train_1.csv":
            parts.append(path.with_name("esnli_train_2.csv"))
        for part in parts:
            for where, row in read_csv_rows(part):
                label = get_field(row, "gold_label", where)
                if label not in NO_GOLD:
                    premise, hypothesis = self._make_side(row, 1, where), self._make_side(row, 2, where)
                    yield make_row(premise, hypothesis) | {"label": require_label(label, LABELS, where)}

    def _make_side(self, row: Row, side: int, where: str) -> Side:
        text = require_text(get_field(row, f"Sentence{side}", where), f"Sentence{side}", where)
        people = []
        for person in (1, 2, 3):
            name = f"Sentence{side}_marked_{person}"
            if not is_blank(row.get(name)):
                people.append(_find_starred_words(row[name], text, name, where))
        return text, vote_on_words(find_words(text), people, self.share)


def _find_starred_words(marked: str, text: str, name: str, where: str) -> list[bool]:
    """Return for each word of the text whether it is between stars in the marked copy."""
    words = marked.split()
    if len(words) != len(text.split()):
        raise ExpoundError(f"{where}: expected the {len(text.split())} words of the text in {name!r}, got {len(words)}")
    return [len(word) > 2 and word.startswith("*") and word.endswith("*") for word in words]
