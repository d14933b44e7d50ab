"""Generated answers on pages: the prompt, and its sources shaded by their scores for the answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exegete.data.exchange import Exchange
from exegete.reports.explanations import Explanation
from exegete.reports.highlighted.pieces import cut_text, find_extents, scores_to_levels


class ShadedSource(NamedTuple):
    """A source: its name, its shade relative to the other sources, and pieces of its text with their shades."""

    name: str
    level: int
    pieces: list[tuple[str, int]]


def get_prompt_texts(exchange: Exchange) -> tuple[str, ...]:
    """Return the texts of the prompt that are not sources; all texts if the prompt has no sources."""
    has_question = not all(exchange.is_source)
    texts = []
    for place, is_source in zip(exchange.places, exchange.is_source, strict=True):
        text = exchange.prompt[slice(*place)].strip()
        if text and not (is_source and has_question):
            texts.append(text)
    return tuple(texts)


def shade_sources(item: Explanation) -> list[ShadedSource]:
    """Return the sources of an answer, or all texts of a prompt without sources, shaded by their scores.

    Scores are summed over the rows of the attribution, the explained parts of the answer.
    """
    exchange, scores = item.exchange, item.scores.sum(0)
    assert exchange is not None
    sources = [number for number, is_source in enumerate(exchange.is_source) if is_source]
    sources = sources or list(range(len(exchange.names)))
    # Sources are shaded relative to each other, and units relative to all units: a long source can be dark as a whole
    # although none of its sentences is.
    unit_levels = scores_to_levels(scores[None])[0]
    sides = np.array([unit.side for unit in item.units])
    totals = np.array([[scores[sides == source].sum() for source in sources]])
    shaded = []
    for source, level in zip(sources, scores_to_levels(totals)[0], strict=True):
        text = exchange.prompt[slice(*exchange.places[source])]
        # Text between units, as blank lines, has no shade.
        cut = cut_text(text, find_extents(item, source), scores.tolist(), unit_levels)
        shaded.append(ShadedSource(exchange.names[source], level, [(piece.text, piece.level) for piece in cut]))
    return shaded
