"""A text cut where words and rationales begin and end, so that each piece has one score and is gold or not."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from exegete.reports.highlighted import colors

if TYPE_CHECKING:
    from exegete.reports.attributions import Attribution

Spans = Sequence[tuple[int, int]]


class Piece(NamedTuple):
    """A stretch of text, its score (None between words), its shade (`colors.level`), and whether people marked it.

    `unit`: the number of the word (or of the token that is not special) it belongs to, None between words.
    """

    text: str
    score: float | None
    level: int
    gold: bool
    unit: int | None = None


def replace_control_characters(text: str) -> str:
    """The text without characters that command a terminal; line breaks and tabs stay."""
    return "".join(each if each in "\n\t" or unicodedata.category(each) != "Cc" else "\ufffd" for each in text)


def largest_magnitude(item: Attribution) -> float:
    """The largest finite magnitude of the scores drawn, which gets the strongest shade; 0 where all are zero."""
    finite = np.abs(item.word_scores if item.words else item.scores).astype(np.float64)
    return float(np.max(finite, initial=0.0, where=np.isfinite(finite)))


def cut_texts(item: Attribution, rationale: Sequence[Spans | None] = ()) -> list[list[Piece]]:
    """The texts of an example, side by side, as pieces; `rationale` has the gold spans of each side.

    Without word spans the words themselves are shown, and without words the tokens that are not special.
    """
    top = largest_magnitude(item)
    units, scores = (item.words, item.word_scores) if item.words else _content_tokens(item)
    if units and not item.word_spans:
        drawn = [
            Piece(unit, float(score), colors.score_to_level(score, top), False, number)
            for number, (unit, score) in enumerate(zip(units, scores, strict=True))
        ]
        return [_separate_with_spaces(drawn)]
    gold = [*rationale, *[None] * len(item.texts)]
    return [_cut_side(item, side, gold[side] or (), top) for side in range(len(item.texts))]


def patch_scores(item: Attribution) -> NDArray[np.float32]:
    """The patches' scores of an image, [rows, columns]."""
    patches: NDArray[np.float32] = item.scores[~np.array(item.special, dtype=bool)]
    return patches.reshape(item.image_shape or (1, -1))


def _content_tokens(item: Attribution) -> tuple[Sequence[str], NDArray[np.float32]]:
    content = [position for position, special in enumerate(item.special) if not special]
    return [item.tokens[position] for position in content], item.scores[content]


def _separate_with_spaces(drawn: Sequence[Piece]) -> list[Piece]:
    space = Piece(" ", None, 0, False)
    return [piece for index, unit in enumerate(drawn) for piece in ((space, unit) if index else (unit,))]


def _cut_side(item: Attribution, side: int, gold: Spans, top: float) -> list[Piece]:
    text = item.texts[side]
    owner = np.full(len(text), -1)
    for word, (where, start, end) in enumerate(item.word_spans):
        if where == side:
            owner[start:end] = word
    marked = np.zeros(len(text), dtype=bool)
    for start, end in gold:
        marked[start:end] = True
    edges = np.flatnonzero((np.diff(owner) != 0) | (np.diff(marked) != 0)) + 1
    bounds = [0, *edges.tolist(), len(text)] if text else [0]
    return [
        _make_piece(item, text[start:end], int(owner[start]), bool(marked[start]), top)
        for start, end in pairwise(bounds)
    ]


def _make_piece(item: Attribution, text: str, word: int, gold: bool, top: float) -> Piece:
    if word < 0:
        return Piece(text, None, 0, gold)
    score = float(item.word_scores[word])
    return Piece(text, score, colors.score_to_level(score, top), gold, word)
