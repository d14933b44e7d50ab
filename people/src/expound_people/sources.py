"""Generated answers on pages: the prompt, and its sources shaded by their scores for the answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from expound.reports.explanations import Explanation
from expound.reports.highlighted.highlight import highlight_explanation
from expound.reports.highlighted.pieces import scores_to_levels
from expound.reports.records import Exchange
from expound.serve.explore.view import cut_prompt


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
    sections = cut_prompt(highlight_explanation(item))
    sections = [section for section in sections if section.is_source] or sections
    # Sources are shaded relative to each other, and units relative to all units: a long source can be dark as a whole
    # although none of its sentences is.
    levels = scores_to_levels(np.array([[section.total for section in sections]], np.float32))[0]
    shaded = []
    for section, level in zip(sections, levels, strict=True):
        pieces = [(piece.text, piece.level) for piece in section.pieces]
        shaded.append(ShadedSource(section.name, level, pieces))
    return shaded
