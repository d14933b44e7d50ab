"""Generated answers on pages: the prompt, and its sources shaded by their scores for the answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exegete.data.exchange import Exchange
from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted.generated_view import cut_text, scores_to_levels


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


def shade_sources(item: GeneratedAttribution) -> list[ShadedSource]:
    """Return the sources of an answer, or all texts of a prompt without sources, shaded by their scores.

    Scores are summed over the rows of the attribution, the explained parts of the answer.
    """
    exchange, scores = item.exchange, item.scores.sum(0)
    sources = [number for number, is_source in enumerate(exchange.is_source) if is_source]
    sources = sources or list(range(len(exchange.names)))
    units = {source: [n for n, span in enumerate(item.unit_spans) if span[0] == source] for source in sources}
    # Sources are shaded relative to each other, and units relative to all units: a long source can be dark as a whole
    # although none of its sentences is.
    unit_levels = scores_to_levels(scores[None])[0]
    totals = np.array([[scores[units[source]].sum() for source in sources]])
    shaded = []
    for source, level in zip(sources, scores_to_levels(totals)[0], strict=True):
        text = exchange.prompt[slice(*exchange.places[source])]
        pieces = []
        for piece in cut_text(text, [item.unit_spans[n][1:3] for n in units[source]]):
            # Text between units, as blank lines, has no owner and no shade.
            piece_level = 0 if piece.owner is None else unit_levels[units[source][piece.owner]]
            pieces.append((piece.text, piece_level))
        shaded.append(ShadedSource(exchange.names[source], level, pieces))
    return shaded
