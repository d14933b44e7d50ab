"""Texts cut at the borders of units and rationales, so that each piece has one score and is marked or not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from expound.data.alignment import trim_span
from expound.reports.highlighted import colors
from expound.reports.records import Extent

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

Spans = Sequence[tuple[int, int]]


class Piece(NamedTuple):
    """A stretch of text, its score (None between units), its level of shade, and whether people marked it (`gold`).

    `unit`: the number of its unit, or of a response's part; None between units.
    """

    text: str
    score: float | None = None
    level: int = 0
    gold: bool = False
    unit: int | None = None


SPACE = Piece(" ")


def scores_to_levels(rows: NDArray[np.float32]) -> list[list[int]]:
    """Return the level of each score [R, U], scaled by the largest finite magnitude of its row."""
    magnitudes = np.abs(rows).astype(np.float64)
    largest = magnitudes.max(1, initial=0.0, where=np.isfinite(magnitudes))
    levels = []
    for row, scale in zip(rows.tolist(), largest.tolist(), strict=True):
        levels.append([colors.score_to_level(score, scale) for score in row])
    return levels


def cut_text(
    text: str, extents: Sequence[Extent], scores: Sequence[float] = (), levels: Sequence[int] = (), marked: Spans = ()
) -> list[Piece]:
    """Return the text cut at the ends of units and of marked spans; where two units overlap, the later one wins."""
    if not text:
        return []
    # The unit that each character belongs to, -1 between units.
    owner = np.full(len(text), -1)
    for number, (start, end) in enumerate(extents):
        owner[start:end] = number
    is_marked = np.zeros(len(text), dtype=bool)
    for start, end in marked:
        is_marked[start:end] = True
    edges = np.flatnonzero((np.diff(owner) != 0) | (np.diff(is_marked) != 0)) + 1
    pieces = []
    for start, end in pairwise([0, *edges.tolist(), len(text)]):
        unit, piece = int(owner[start]), Piece(text[start:end], gold=bool(is_marked[start]))
        if unit >= 0:
            score, level = (scores[unit], levels[unit]) if scores else (None, 0)
            piece = piece._replace(score=score, level=level, unit=unit)
        pieces.append(piece)
    return pieces


def cut_response(text: str, extents: Sequence[Extent]) -> list[Piece]:
    """Return a response cut into its parts; without the white space at the edges of a part."""
    # An underlined line break would be drawn as a dot on an empty line.
    return cut_text(text, [trim_span(text, *extent) for extent in extents])


def find_extents(item: Explanation, segment: int) -> list[Extent]:
    """Return the characters of each unit in text number `segment`, (0, 0) for units of other texts."""
    extents = []
    for unit in item.units:
        extents.append((unit.start, unit.end) if unit.segment == segment else (0, 0))
    return extents


def find_prompt_extents(item: Explanation) -> list[Extent]:
    """Return the characters of each unit in the whole prompt of generated text."""
    places = item.exchange.places if item.exchange else ()
    return [(places[unit.segment][0] + unit.start, places[unit.segment][0] + unit.end) for unit in item.units]


def cut_texts(item: Explanation, rationale: Sequence[Spans | None] = ()) -> list[list[Piece]]:
    """Return the pieces of each text of an example, or of the whole prompt, shaded by the sum of all targets.

    `rationale` has the spans that people marked in each text. Without characters the units themselves are the pieces.
    """
    summed = item.scores.sum(0, keepdims=True)
    scores, levels = summed[0].tolist(), scores_to_levels(summed)[0]
    if item.exchange is not None:
        return [cut_text(item.exchange.prompt, find_prompt_extents(item), scores, levels)]
    if item.units and all(unit.segment < 0 for unit in item.units):
        pieces = list[Piece]()
        for number, unit in enumerate(item.units):
            if number:
                pieces.append(SPACE)
            pieces.append(Piece(unit.text, scores[number], levels[number], unit=number))
        return [pieces]
    marked = [*rationale, *[None] * len(item.texts)]
    segments = []
    for segment, text in enumerate(item.texts):
        segments.append(cut_text(text, find_extents(item, segment), scores, levels, marked[segment] or ()))
    return segments


def cut_patches(item: Explanation) -> list[list[Piece]]:
    """Return the patches of an image as rows of pieces without text; empty for other examples."""
    if item.image_shape is None:
        return []
    rows, columns = item.image_shape
    (pieces,) = cut_texts(item)
    patches = [piece._replace(text="") for piece in pieces if piece.unit is not None]
    return [patches[row * columns : (row + 1) * columns] for row in range(rows)]
