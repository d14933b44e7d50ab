"""Blinding of explanations: annotators see a letter instead of the method, and nothing that reveals it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from string import ascii_uppercase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from exegete.reports.attributions import Attribution
from exegete.reports.generated import GeneratedAttribution
from exegete.web.human_study.sources import ShadedSource, shade_sources

AnyAttribution = Attribution | GeneratedAttribution
POSITIVE = "positive"
SCORE_RULES: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    POSITIVE: lambda scores: np.maximum(scores, 0),
    "absolute": np.abs,
    "signed": lambda scores: scores,
}
"""Rules from scores to what is shown: the positive part or the size in one hue, or both signs in two hues."""


class BlindExplanation(NamedTuple):
    """An explanation under a letter. `method` is never sent to the browser."""

    letter: str
    method: str
    attribution: AnyAttribution

    @property
    def sources(self) -> list[ShadedSource]:
        """Return the shaded sources of a generated answer; empty for a classifier's prediction."""
        if not isinstance(self.attribution, GeneratedAttribution):
            return []
        return shade_sources(self.attribution)


def blind_explanations(
    explanations: Mapping[str, AnyAttribution], *, seed: int, annotator: int, number: int, show: str = POSITIVE
) -> list[BlindExplanation]:
    """Return the explanations of example `number` under letters, in random order.

    `show` is the rule from scores to colours, the same for all methods, see `SCORE_RULES`.
    """
    names = sorted(explanations)
    # The order depends only on seed, annotator and example, so that it is the same when the annotator comes back.
    order = _make_generator(seed, annotator, number).permutation(len(names))
    return [
        BlindExplanation(
            make_letter(place), names[chosen], hide_method(explanations[names[chosen]], make_letter(place), show)
        )
        for place, chosen in enumerate(order)
    ]


def hide_method(item: AnyAttribution, letter: str, show: str = POSITIVE) -> AnyAttribution:
    """Return the attribution without what could reveal its method; of a generated answer, one row for all of it."""
    # Parameters, convergence deltas, layers and interactions exist for some methods only. All are marked as signed, so
    # that signed and unsigned methods get the same legend.
    rule = SCORE_RULES[show]
    if isinstance(item, GeneratedAttribution):
        scores, spans = rule(item.scores.sum(0))[None], tuple(item.exchange.spans("response"))
        whole = replace(item, scores=scores, spans=spans, log_probs=item.log_probs.sum(keepdims=True), bounds=None)
        return replace(whole, method=letter, params={}, signed=True)
    scores, words = rule(item.scores), rule(item.word_scores)
    hidden = replace(item, method=letter, params={}, delta=None, layers=None, signed=True, pairs=())
    return replace(hidden, scores=scores, word_scores=words)


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
