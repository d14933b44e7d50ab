"""The values that a page shows: bars of an output, texts of a prompt, and their shades per part of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from expound.data.spans import CONVERSATION_UNITS
from expound.explainers.cite_answer import place_in_source
from expound.reports.explanations import Explanation
from expound.reports.highlighted.highlight import HighlightedExplanation
from expound.reports.highlighted.pieces import Piece, cut_text, find_extents
from expound.reports.records import Extent, Unit
from expound.serve.explore.question import Question
from expound.serve.explore.tasks import OutputScore

VISIBLE_BARS = 8
"""Number of labels that are visible before the user asks for all."""


class Bar(NamedTuple):
    """An output, its number, and whether its bar is visible at first."""

    place: int
    score: OutputScore
    is_visible: bool = True


class PromptSection(NamedTuple):
    """A named text of the prompt, whether it is a document, the sum of its scores, and its pieces by unit."""

    name: str
    is_source: bool
    total: float
    pieces: list[Piece]

    @property
    def has_units(self) -> bool:
        """Whether a part of the text can be removed."""
        return any(piece.unit is not None for piece in self.pieces)


class CitedPart(NamedTuple):
    """A sentence or chosen part of an answer, its characters, and a unit of a document that it comes from."""

    text: str
    span: Extent
    document: str
    place: Unit
    score: float


def list_cited_parts(item: Explanation, question: Question) -> list[CitedPart]:
    """Return the best units of documents of each part of an answer, with the characters of both as they were given."""
    if item.exchange is None or not any(item.exchange.is_source) or item.unit in CONVERSATION_UNITS:
        return []
    unit = item.unit if item.unit in ("source", "paragraph") else "sentence"
    row = {"sources": [{"name": name, "text": text} for name, text in question.sources]}
    # A space was put before the answer to a prompt without a chat template.
    lead = int(item.exchange.response == f" {question.response}")
    parts = []
    for citation in item.citations(unit=unit, target="sentences" if question.rows in ("words", "tokens") else None):
        start, end = citation.span
        for (name, score), cited in zip(citation.sources, citation.places, strict=True):
            place = place_in_source(item, row, cited)
            parts.append(CitedPart(citation.text, (start - lead, end - lead), name, place, score))
    return parts


def arrange_bars(scores: Sequence[OutputScore]) -> list[Bar]:
    """Return a bar per output: many labels sorted by value, parts of an answer hidden until one is chosen."""
    bars = [Bar(place, score) for place, score in enumerate(scores)]
    if scores and scores[0].n_tokens:
        return [bar._replace(is_visible=bar.place == 0) for bar in bars]
    if len(bars) <= VISIBLE_BARS:
        return bars
    ranked = sorted(bars, key=lambda bar: -bar.score.value)
    return [bar._replace(is_visible=rank < VISIBLE_BARS) for rank, bar in enumerate(ranked)]


def cut_prompt(drawing: HighlightedExplanation) -> list[PromptSection]:
    """Return the S texts of a prompt with the scores of the whole answer; none for other tasks."""
    item = drawing.item
    if item.exchange is None:
        return []
    scores, sections = item.scores.sum(0), []
    sides = np.array([unit.segment for unit in item.units])
    texts = zip(item.exchange.names, item.exchange.places, item.exchange.is_source, strict=True)
    for number, (name, (start, end), is_source) in enumerate(texts):
        extents = find_extents(item, number)
        pieces = cut_text(item.exchange.prompt[start:end], extents, scores.tolist(), drawing.levels[0])
        sections.append(PromptSection(name, is_source, float(scores[sides == number].sum()), pieces))
    return sections


def collect_row_values(drawing: HighlightedExplanation) -> dict[str, Any]:
    """Return what a card's script needs to show one of T parts of an answer; each list begins with the whole answer.

    `levels` and `scores` [T + 1, U] of the units, `sums` [T + 1, S] of the sections, `best` [T + 1] in words.
    """
    item = drawing.item
    assert item.exchange is not None
    rows = np.concatenate([item.scores.sum(0, keepdims=True), item.scores]).astype(np.float64)
    # [U, S] Membership of units in sections: the product with the scores sums them per section.
    sides = np.array([unit.segment for unit in item.units])
    is_in_section = sides[:, None] == np.arange(len(item.exchange.names))
    scores = []
    for row in rows.tolist():
        # Three digits are shown; all digits would make the page five times larger.
        scores.append([float(f"{score:.3g}") for score in row])
    sums = (rows @ is_in_section).tolist()
    return {"levels": drawing.levels, "scores": scores, "sums": sums, "best": drawing.best}
