"""Blinding of explanations: annotators see a letter instead of the method, and nothing that reveals it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from string import ascii_uppercase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from expound.reports.explanations import Explanation
from expound.reports.highlighted.highlight import highlight_explanation
from expound.reports.highlighted.pieces import scores_to_levels
from expound.serve.explore.view import cut_prompt

POSITIVE = "positive"
SCORE_RULES: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    POSITIVE: lambda scores: np.maximum(scores, 0),
    "absolute": np.abs,
    "signed": lambda scores: scores,
}
"""Rules from scores to what is shown: the positive part or the size in one hue, or both signs in two hues."""


class ShadedSource(NamedTuple):
    """A source: its name, its shade relative to the other sources, and pieces of its text with their shades."""

    name: str
    level: int
    pieces: list[tuple[str, int]]


class BlindExplanation(NamedTuple):
    """An explanation under a letter. `method` is never sent to the browser."""

    letter: str
    method: str
    attribution: Explanation

    @property
    def sources(self) -> list[ShadedSource]:
        """Return the shaded sources of a generated answer; empty for a classifier's prediction."""
        return [] if self.attribution.exchange is None else shade_sources(self.attribution)


def blind_explanations(
    explanations: Mapping[str, Explanation], *, seed: int, annotator: int, number: int, show: str = POSITIVE
) -> list[BlindExplanation]:
    """Return the explanations of example `number` under letters, in random order.

    `show` is the rule from scores to colors, the same for all methods, see `SCORE_RULES`.
    """
    names = sorted(explanations)
    # The order depends only on seed, annotator and example, so that it is the same when the annotator comes back.
    order = _make_generator(seed, annotator, number).permutation(len(names))
    blinded = []
    for place, chosen in enumerate(order):
        letter, name = make_letter(place), names[chosen]
        blinded.append(BlindExplanation(letter, name, hide_method(explanations[name], letter, show)))
    return blinded


def hide_method(item: Explanation, letter: str, show: str = POSITIVE) -> Explanation:
    """Return the attribution without what could reveal its method; of a generated answer, one row for all of it."""
    # Parameters, convergence deltas, layers and interactions exist for some methods only. All are marked as signed, so
    # that signed and unsigned methods get the same legend.
    rule = SCORE_RULES[show]
    whole = item if item.exchange is None else item.aggregate(target="response")
    # Only some methods say which number their scores sum to.
    targets = tuple(target._replace(output=None) for target in whole.targets)
    hidden = replace(whole, method=letter, params={}, targets=targets, convergence_delta=None, layers=None, signed=True)
    hidden = replace(hidden, interactions=(), bounds=None, response_scores=None)
    token_scores = None if whole.token_scores is None else rule(whole.token_scores)
    return replace(hidden, scores=rule(whole.scores), token_scores=token_scores)


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


def make_letter(place: int) -> str:
    """Return the letter of a position: A, B, ..., Z, A2, B2, ..."""
    rounds, position = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[position] + (str(rounds + 1) if rounds else "")


def draw_item_order(count: int, *, seed: int, annotator: int) -> list[int]:
    """Return a random order of the examples for an annotator."""
    # -1 is no example's number, so this draw is independent of the orders of explanations.
    order: list[int] = _make_generator(seed, annotator, -1).permutation(count).tolist()
    return order


def assign_method(methods: int, *, annotator: int, number: int) -> int:
    """Return the number of the method that explains an example to an annotator, if only one does.

    A Latin square: every annotator sees each method equally often, and so does every example over annotators.
    """
    return (annotator + number) % methods


def _make_generator(seed: int, annotator: int, number: int) -> np.random.Generator:
    # A sequence of seeds gives independent streams. Its elements must not be negative, hence number + 1.
    return np.random.default_rng([seed, annotator, number + 1])
