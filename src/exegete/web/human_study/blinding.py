"""Blinding of explanations for annotators: a letter instead of a name, and nothing that reveals the method."""

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
"""Parts of scores that are shown: the positive part or the size in one hue, or both signs in two."""


class BlindExplanation(NamedTuple):
    """An explanation under a letter. `method` stays on the server."""

    letter: str
    method: str
    attribution: AnyAttribution

    @property
    def sources(self) -> list[ShadedSource]:
        """The sources of a generated answer; of other answers there are none."""
        return shade_sources(self.attribution) if isinstance(self.attribution, GeneratedAttribution) else []


def blind_explanations(
    explanations: Mapping[str, AnyAttribution], *, seed: int, annotator: int, number: int, show: str = POSITIVE
) -> list[BlindExplanation]:
    """The explanations of example `number` in this annotator's random order, under letters.

    The order is decided by the project's seed, the annotator and the example: coming back shows the same one. Numbers,
    parameters and what only some methods have are left out, and signed methods look like unsigned ones: `show` is the
    declared rule for all, see `SCORE_RULES`.
    """
    names = sorted(explanations)
    order = _make_generator(seed, annotator, number).permutation(len(names))
    return [
        BlindExplanation(
            make_letter(place), names[chosen], hide_method(explanations[names[chosen]], make_letter(place), show)
        )
        for place, chosen in enumerate(order)
    ]


def hide_method(item: AnyAttribution, letter: str, show: str = POSITIVE) -> AnyAttribution:
    """The attribution without what tells its method; of a generated answer, all of it in one row."""
    rule = SCORE_RULES[show]
    if isinstance(item, GeneratedAttribution):
        scores, spans = rule(item.scores.sum(0))[None], tuple(item.exchange.spans("response"))
        whole = replace(item, scores=scores, spans=spans, log_probs=item.log_probs.sum(keepdims=True), bounds=None)
        return replace(whole, method=letter, params={}, signed=True)
    scores, words = rule(item.scores), rule(item.word_scores)
    bare = replace(item, method=letter, params={}, delta=None, layers=None, signed=True, pairs=())
    return replace(bare, scores=scores, word_scores=words)


def make_letter(place: int) -> str:
    """A, B, ..., Z, A2, B2, ..."""
    again = place // len(ascii_uppercase)
    return ascii_uppercase[place % len(ascii_uppercase)] + (str(again + 1) if again else "")


def draw_item_order(count: int, *, seed: int, annotator: int) -> list[int]:
    """The order in which an annotator meets the examples."""
    order: list[int] = _make_generator(seed, annotator, -1).permutation(count).tolist()
    return order


def assign_method(methods: int, *, annotator: int, number: int) -> int:
    """Which of so many methods explains an example to an annotator, where only one does.

    Every annotator sees each method equally often, and so does every example.
    """
    return (annotator + number) % methods


def _make_generator(seed: int, annotator: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, annotator, number + 1])
