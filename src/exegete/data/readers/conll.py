"""Tagged words in columns, a word a line, as in the shared tasks of CoNLL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import Row, make_text_features, read_text
from exegete.data.readers.layouts import FilePerSplit
from exegete.data.spans import join_words
from exegete.data.tags import OUTSIDE, split_tag
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from datasets import Features

Stretch = tuple[str, int, int]
"""A kind, its first word, and the one behind its last."""


@dataclass(frozen=True, kw_only=True)
class Conll(FilePerSplit):
    """A row for each tagged stretch: the sentence, words between single spaces, the stretch's `span`, its kind.

    `column`: which column the tag is, from 0; negative ones count from the last. Tags are those of IOB1, IOB2, BIOES
    and BILOU, or have no prefix: then each word is a stretch. What is tagged O is none; a sentence without tags has no
    rows.
    """

    card: ClassVar[DataCard] = DataCard(
        name="conll", what="tagged words in columns: entities, chunks, parts of speech",
        form="conll:FOLDER with train.txt, dev.txt, test.txt (or eng.train, eng.testa, eng.testb), a word and its tags "
        "a line", source="Tjong Kim Sang and De Meulder 2003", licence="the file's", example="conll:corpora/conll2003",
    )  # fmt: skip
    names: ClassVar = {
        "train": ("train.txt", "train.conll", "eng.train"),
        "dev": ("dev.txt", "valid.txt", "dev.conll", "eng.testa"),
        "test": ("test.txt", "test.conll", "eng.testb"),
    }
    column: int = -1

    def features(self, path: Path) -> Features:
        """Kinds are those of all files, so that their numbers are the same in every split."""
        from datasets import Features, List, Value

        found = (self.read_sentences(each) for each in self.find_files().values())
        kinds = {kind for each in found for _, tags in each for kind, _, _ in find_stretches(tags)}
        if not kinds:
            raise ExegeteError(f"{path} has no tags in column {self.column}: all are {OUTSIDE}; set column")
        return Features({**make_text_features(sorted(kinds)), "span": List(Value("int32"))})

    def read_rows(self, path: Path) -> Iterator[Row]:
        """The tagged stretches of a file."""
        names: list[str] = self.features(path)["label"].names
        for words, tags in self.read_sentences(path):
            text, spans = join_words(words)
            for kind, first, last in find_stretches(tags):
                span = [spans[first][0], spans[last - 1][1]]
                yield {"text": text, "label": names.index(kind), "rationale": None, "span": span}

    def read_sentences(self, path: Path) -> Iterator[tuple[list[str], list[str]]]:
        """The words and tags of each sentence. Raises ExegeteError for a line with too few columns."""
        words, tags = list[str](), list[str]()
        for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
            cells = line.split()
            if cells and cells[0] != "-DOCSTART-" and not line.startswith("# "):
                place = self.column if self.column >= 0 else len(cells) + self.column
                if len(cells) < 2 or not 0 < place < len(cells):
                    raise ExegeteError(f"{path}, line {number}: expected a word and its tags, got {line[:60]!r}")
                words.append(cells[0])
                tags.append(cells[place])
            elif not cells and words:
                yield words, tags
                words, tags = [], []


def find_stretches(tags: list[str]) -> list[Stretch]:
    """The tagged stretches of a sentence, in order; one begins where a tag says so, or another kind stands before."""
    found, before = list[Stretch](), ("", OUTSIDE)
    for place, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        goes_on = prefix in tuple("IMEL") and kind == before[1] and before[0] not in tuple("ESLU")
        if goes_on and found:
            found[-1] = (kind, found[-1][1], place + 1)
        elif kind != OUTSIDE:
            found.append((kind, place, place + 1))
        before = (prefix, kind)
    return found
