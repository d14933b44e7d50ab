"""Generated answers on the pages: what was asked, and the sources, coloured by how much they count for the answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exegete.data.exchange import Exchange
from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted.generated_view import cut_text, scores_to_levels


class ShadedSource(NamedTuple):
    """A source by its name, its shade among the sources, and pieces of its text with theirs."""

    name: str
    level: int
    pieces: list[tuple[str, int]]


def get_prompt_texts(exchange: Exchange) -> tuple[str, ...]:
    """The texts of the prompt that are no sources; all where nothing is a source."""
    shown = [not source for source in exchange.is_source]
    return tuple(
        exchange.prompt[slice(*place)].strip()
        for place, own in zip(exchange.places, shown if any(shown) else [True] * len(shown), strict=True)
        if own and exchange.prompt[slice(*place)].strip()
    )


def shade_sources(item: GeneratedAttribution) -> list[ShadedSource]:
    """The sources of an answer, or every text of a prompt that has none, shaded by the scores of all rows together."""
    exchange, scores = item.exchange, item.scores.sum(0)
    shades = scores_to_levels(scores[None])[0]
    chosen = [number for number, own in enumerate(exchange.is_source) if own] or list(range(len(exchange.names)))
    units = {text: [n for n, span in enumerate(item.unit_spans) if span[0] == text] for text in chosen}
    totals = scores_to_levels(np.array([[scores[units[text]].sum() for text in chosen]]))[0]
    found = []
    for text, total in zip(chosen, totals, strict=True):
        mine = units[text]
        whole = exchange.prompt[slice(*exchange.places[text])]
        cut = cut_text(whole, [(item.unit_spans[n][1], item.unit_spans[n][2]) for n in mine])
        pieces = [(piece.text, 0 if piece.owner is None else shades[mine[piece.owner]]) for piece in cut]
        found.append(ShadedSource(exchange.names[text], total, pieces))
    return found
