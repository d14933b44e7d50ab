"""Texts cut at the borders of words and rationales, so that each piece has one score and is marked or not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from exegete.reports.highlighted import colors
from exegete.reports.highlighted.scored import ScoredExample

Spans = Sequence[tuple[int, int]]


class Piece(NamedTuple):
    """A stretch of text, its score (None between words), its level of shade, and whether people marked it (`gold`).

    `unit`: the number of its word (without words: of its token, special ones not counted); None between words.
    """

    text: str
    score: float | None
    level: int
    gold: bool
    unit: int | None = None


SPACE = Piece(" ", None, 0, gold=False)


def largest_magnitude(item: ScoredExample) -> float:
    """Return the largest finite absolute score of an example, which gets the strongest shade; 0 if all are zero."""
    scores = item.word_scores if item.words else item.scores
    magnitudes = np.abs(scores).astype(np.float64)
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def cut_texts(item: ScoredExample, rationale: Sequence[Spans | None] = ()) -> list[list[Piece]]:
    """Return the pieces of each text of an example; `rationale` has the spans that people marked in each text.

    Without word spans the words themselves become the pieces, and without words the tokens that are not special.
    """
    largest = largest_magnitude(item)
    units, scores = (item.words, item.word_scores) if item.words else _content_tokens(item)
    if units and not item.word_spans:
        pieces = list[Piece]()
        for number, (unit, score) in enumerate(zip(units, scores.tolist(), strict=True)):
            if number:
                pieces.append(SPACE)
            pieces.append(Piece(unit, score, colors.score_to_level(score, largest), gold=False, unit=number))
        return [pieces]
    marked = [*rationale, *[None] * len(item.texts)]
    return [_cut_text(item, side, marked[side] or (), largest) for side in range(len(item.texts))]


def patch_scores(item: ScoredExample) -> NDArray[np.float32]:
    """Return the scores of an image's patches, [rows, columns]."""
    patches: NDArray[np.float32] = item.scores[~np.array(item.special, dtype=bool)]
    return patches.reshape(item.image_shape or (1, -1))


def _content_tokens(item: ScoredExample) -> tuple[Sequence[str], NDArray[np.float32]]:
    content = [position for position, special in enumerate(item.special) if not special]
    return [item.tokens[position] for position in content], item.scores[content]


def _cut_text(item: ScoredExample, side: int, marked: Spans, largest: float) -> list[Piece]:
    text = item.texts[side]
    # The word that each character belongs to, -1 between words.
    owner = np.full(len(text), -1)
    for word, (text_number, start, end) in enumerate(item.word_spans):
        if text_number == side:
            owner[start:end] = word
    is_marked = np.zeros(len(text), dtype=bool)
    for start, end in marked:
        is_marked[start:end] = True
    edges = np.flatnonzero((np.diff(owner) != 0) | (np.diff(is_marked) != 0)) + 1
    bounds = [0, *edges.tolist(), len(text)] if text else [0]
    pieces = []
    for start, end in pairwise(bounds):
        word, gold = int(owner[start]), bool(is_marked[start])
        if word < 0:
            pieces.append(Piece(text[start:end], None, 0, gold))
        else:
            score = float(item.word_scores[word])
            pieces.append(Piece(text[start:end], score, colors.score_to_level(score, largest), gold, word))
    return pieces
