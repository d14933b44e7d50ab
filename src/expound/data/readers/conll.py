"""Tagged words in columns, one word per line, as in the shared tasks of CoNLL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Row, make_text_features, read_text
from expound.data.readers.layouts import FilePerSplit
from expound.data.spans import OUTSIDE, join_words, split_tag
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features

Stretch = tuple[str, int, int]
"""A kind and the half-open span of its words."""


@dataclass(frozen=True, kw_only=True)
class Conll(FilePerSplit):
    """Reads one row per tagged stretch of words: the sentence, the stretch's `span` and its kind as the label.

    Tags follow IOB1, IOB2, BIOES or BILOU. A tag without a prefix makes each word a stretch of its own. Words
    tagged O belong to no stretch, so a sentence of such words has no rows.

    Args:
        column: number of the column with the tags, from 0; negative numbers count from the last column.
    """

    card: ClassVar[DataCard] = DataCard(
        name="conll", what="tagged words in columns: entities, chunks, parts of speech",
        form="conll:FOLDER with train.txt, dev.txt, test.txt (or eng.train, eng.testa, eng.testb); one word "
        "with its tags per line", source="Tjong Kim Sang and De Meulder 2003", license="the file's",
        example="conll:corpora/conll2003",
    )  # fmt: skip
    names: ClassVar = {
        "train": ("train.txt", "train.conll", "eng.train"),
        "dev": ("dev.txt", "valid.txt", "dev.conll", "eng.testa"),
        "test": ("test.txt", "test.conll", "eng.testb"),
    }
    column: int = -1

    def features(self, path: Path) -> Features:
        """Return the column types; classes are the kinds of all splits, so that indices agree between splits."""
        from datasets import Features, List, Value

        kinds: set[str] = set()
        for file in self.find_files().values():
            for _, tags in self.read_sentences(file):
                kinds |= {kind for kind, _, _ in find_stretches(tags)}
        if not kinds:
            raise ExpoundError(f"{path} has no tags in column {self.column}: all are {OUTSIDE}; set column")
        return Features({**make_text_features(sorted(kinds)), "span": List(Value("int32"))})

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield a row per tagged stretch of a file."""
        names: list[str] = self.features(path)["label"].names
        for words, tags in self.read_sentences(path):
            text, spans = join_words(words)
            for kind, first, last in find_stretches(tags):
                span = [spans[first][0], spans[last - 1][1]]
                yield {"text": text, "label": names.index(kind), "rationale": None, "span": span}

    def read_sentences(self, path: Path) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the words and tags of each sentence. Raises ExpoundError for a line with too few columns."""
        words, tags = list[str](), list[str]()
        for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
            cells = line.split()
            if cells and cells[0] != "-DOCSTART-" and not line.startswith("# "):
                place = self.column
                if place < 0:
                    place += len(cells)
                if len(cells) < 2 or not 0 < place < len(cells):
                    raise ExpoundError(f"{path}, line {number}: expected a word and its tags, got {line[:60]!r}")
                words.append(cells[0])
                tags.append(cells[place])
            elif not cells and words:
                yield words, tags
                words, tags = [], []


def find_stretches(tags: list[str]) -> list[Stretch]:
    """Return the tagged stretches of a sentence, in order."""
    stretches, before = list[Stretch](), ("", OUTSIDE)
    for place, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        # in IOB1 a stretch may begin with I, so I continues a stretch only after a word of the same kind
        is_inside = prefix in tuple("IMEL") and kind == before[1] and before[0] not in tuple("ESLU")
        if is_inside and stretches:
            stretches[-1] = (kind, stretches[-1][1], place + 1)
        elif kind != OUTSIDE:
            stretches.append((kind, place, place + 1))
        before = (prefix, kind)
    return stretches
