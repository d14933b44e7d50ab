"""Texts with what each of several people marked, and the one rationale that a corpus needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from exegete.data.alignment import Word, split_words
from exegete.data.readers.base import Table, is_blank, make_text_features
from exegete.data.readers.columns import Labels
from exegete.data.sentences import split_sentences
from exegete.errors import ExegeteError

Mark = tuple[int, int, int]
"""Side (0 or 1), start and end in characters of that side's raw text, half-open."""
MAJORITY = 0.5
UNITS: Mapping[str, Callable[[str, int], tuple[Word, ...]]] = {"word": split_words, "sentence": split_sentences}
"""What people mark: words, or whole sentences."""


@dataclass(frozen=True)
class MarkedExample:
    """An example as people marked it.

    `texts`: one, or the two of a pair. `label`: its name, None where unknown. `marks`: what each person marked, by the
    person's name; somebody who looked and marked nothing has no marks. `where`: its place, for errors.

    Raises `ExegeteError` for a mark outside its text, and for half a character (a lone surrogate) in a text or name.
    """

    texts: tuple[str, ...]
    label: str | float | None = None
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    where: str = field(default="an example", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.texts) <= 2 or any(is_blank(text) for text in self.texts):
            raise ExegeteError(f"{self.where}: expected one text or two, and none of them empty")
        where = self.where
        try:
            "".join((*self.texts, str(self.label), *self.marks)).encode()
        except UnicodeEncodeError as error:
            found = error.object[error.start]
            raise ExegeteError(
                f"{where}: expected whole characters, got half of one (a lone surrogate): {found!r}"
            ) from None
        for side, start, end in (mark for marks in self.marks.values() for mark in marks):
            if not 0 <= side < len(self.texts) or not 0 <= start < end <= len(self.texts[side]):
                raise ExegeteError(f"{where}: expected marks inside the texts, got [{start}, {end}] of text {side + 1}")


def split_units(texts: Sequence[str], unit: str = "word") -> list[Word]:
    """The words, or sentences, of all texts."""
    return [each for side, text in enumerate(texts) for each in UNITS[unit](text, side)]


def find_marked_units(units: Sequence[Word], marks: Sequence[Sequence[int]]) -> list[bool]:
    """Which units the marks touch."""
    return [
        any(unit.side == side and unit.start < end and start < unit.end for side, start, end in marks) for unit in units
    ]


def aggregate_marks(example: MarkedExample, share: float = MAJORITY) -> list[list[list[int]]] | None:
    """For each text the spans whose characters at least this share of its people marked; None where nobody looked."""
    if not example.marks:
        return None
    found = []
    for side, text in enumerate(example.texts):
        votes = np.zeros(len(text))
        for marks in example.marks.values():
            mine = np.zeros(len(text), dtype=bool)
            for _, start, end in (mark for mark in marks if mark[0] == side):
                mine[start:end] = True
            votes += mine
        found.append(find_runs(votes >= max(1.0, share * len(example.marks))))
    return found


def find_runs(flags: Iterable[bool | np.bool_]) -> list[list[int]]:
    """The [start, end) of every run of true."""
    spans, at = [], 0
    for value, group in groupby(flags, key=bool):
        size = len(list(group))
        if value:
            spans.append([at, at + size])
        at += size
    return spans


def make_marked_table(examples: Sequence[MarkedExample], share: float = MAJORITY) -> Table:
    """The examples in canonical form, with the rationale that enough people agree on."""
    if not examples:
        raise ExegeteError("there are no examples")
    pair = any(len(example.texts) == 2 for example in examples)
    single = next((example.where for example in examples if len(example.texts) == 1), None)
    if pair and single:
        raise ExegeteError(f"{single}: expected pairs throughout or single texts throughout, got both")
    labels = None
    if all(example.label is not None for example in examples):
        labels = Labels.of([(example.where, {"label": example.label}) for example in examples], "label", "")
    return Table(make_text_features(labels.feature if labels else None, pair=pair), _make_rows(examples, labels, share))


def _make_rows(examples: Sequence[MarkedExample], labels: Labels | None, share: float) -> Iterator[dict[str, Any]]:
    for example in examples:
        spans = aggregate_marks(example, share)
        row: dict[str, Any] = {"text": example.texts[0], "rationale": None if spans is None else spans[0]}
        if len(example.texts) == 2:
            row |= {"text_pair": example.texts[1], "rationale_pair": None if spans is None else spans[1]}
        if labels is not None:
            row["label"] = labels.encode(example.label, example.where)
        yield row
