"""Examples with the marks of several annotators, and their aggregation to one rationale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import numpy as np

from expound.data.alignment import Word, split_sentences, split_words
from expound.data.readers.base import Table, is_blank, make_row, make_text_features
from expound.data.readers.columns import Labels
from expound.errors import ExpoundError

Mark = tuple[int, int, int]
"""Side (0 or 1), start and end in characters of that side's raw text, half-open."""
MAJORITY = 0.5
UNITS: Mapping[str, Callable[[str, int], tuple[Word, ...]]] = {"word": split_words, "sentence": split_sentences}
"""The units that people mark."""


@dataclass(frozen=True)
class MarkedExample:
    """An example with the marks of its annotators.

    Args:
        texts: one text, or the two of a pair.
        label: name of the label, None if unknown.
        marks: marks by annotator; an annotator without marks has an empty tuple.
        where: the place of the example, for errors.

    Raises:
        ExpoundError: an empty text, a mark outside of its text, or a lone surrogate in a text or name.
    """

    texts: tuple[str, ...]
    label: str | float | None = None
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    where: str = field(default="an example", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.texts) <= 2 or any(map(is_blank, self.texts)):
            raise ExpoundError(f"{self.where}: expected one text or two, and none of them empty")
        where = self.where
        try:
            "".join((*self.texts, str(self.label), *self.marks)).encode()
        except UnicodeEncodeError as error:
            surrogate = error.object[error.start]
            raise ExpoundError(
                f"{where}: expected whole characters, got half of one (a lone surrogate): {surrogate!r}"
            ) from None
        for side, start, end in chain.from_iterable(self.marks.values()):
            if not 0 <= side < len(self.texts) or not 0 <= start < end <= len(self.texts[side]):
                raise ExpoundError(f"{where}: expected marks inside the texts, got [{start}, {end}] of text {side + 1}")


def split_units(texts: Sequence[str], unit: str = "word") -> list[Word]:
    """Return the words or sentences of all texts."""
    units: list[Word] = []
    for side, text in enumerate(texts):
        units += UNITS[unit](text, side)
    return units


def find_marked_units(units: Sequence[Word], marks: Sequence[Sequence[int]]) -> list[bool]:
    """Return for each unit whether a mark overlaps it."""
    is_marked = [False] * len(units)
    for number, unit in enumerate(units):
        for side, start, end in marks:
            if unit.segment == side and unit.start < end and start < unit.end:
                is_marked[number] = True
    return is_marked


def aggregate_marks(example: MarkedExample, share: float = MAJORITY) -> list[list[list[int]]] | None:
    """Return for each text the spans that at least this share of the annotators marked; None without annotators."""
    if not example.marks:
        return None
    rationales = []
    for side, text in enumerate(example.texts):
        votes = np.zeros(len(text))
        for marks in example.marks.values():
            # a mask, so that overlapping marks of one annotator count once
            is_marked = np.zeros(len(text), dtype=bool)
            for mark_side, start, end in marks:
                if mark_side == side:
                    is_marked[start:end] = True
            votes += is_marked
        # at least one vote, so that a share of 0 does not mark every character
        rationales.append(find_runs(votes >= max(1.0, share * len(example.marks))))
    return rationales


def find_runs(flags: Iterable[bool | np.bool_]) -> list[list[int]]:
    """Return the [start, end) of every run of true values."""
    spans, position = [], 0
    for value, group in groupby(flags, key=bool):
        size = len(list(group))
        if value:
            spans.append([position, position + size])
        position += size
    return spans


def make_marked_table(examples: Sequence[MarkedExample], share: float = MAJORITY) -> Table:
    """Return the examples in canonical form, with the rationale of at least this share of annotators."""
    if not examples:
        raise ExpoundError("there are no examples")
    singles = [example.where for example in examples if len(example.texts) == 1]
    if 0 < len(singles) < len(examples):
        raise ExpoundError(f"{singles[0]}: expected pairs throughout or single texts throughout, got both")
    labels, feature = None, None
    if None not in [example.label for example in examples]:
        labels = Labels.of([(example.where, {"label": example.label}) for example in examples], "label", "")
        feature = labels.feature
    return Table(make_text_features(feature, pair=not singles), _make_rows(examples, labels, share))


def _make_rows(examples: Sequence[MarkedExample], labels: Labels | None, share: float) -> Iterator[dict[str, Any]]:
    for example in examples:
        rationales: Sequence[list[list[int]] | None] = aggregate_marks(example, share) or (None, None)
        row = make_row(*zip(example.texts, rationales, strict=False))
        if labels is not None:
            row["label"] = labels.encode(example.label, example.where)
        yield row
