"""The page of an answer as plain values: what the model read, text by text, and its shades by part of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted.generated_view import HighlightedText, TextPiece, cut_text, highlight_generated


@dataclass(frozen=True)
class Section:
    """A text that the model read, its name, whether it is a document, and its pieces by unit."""

    name: str
    is_source: bool
    pieces: list[TextPiece]


@dataclass(frozen=True)
class AnswerView:
    """What `highlighted` has, with the prompt by `sections` [S].

    `sums` [T + 1, S]: the scores of each text, of all rows together and of each; `log_probs` and `tokens` [T + 1]: of
    the whole answer and each row.
    """

    highlighted: HighlightedText
    sections: list[Section]
    sums: list[list[float]]
    log_probs: list[float]
    tokens: list[int]

    @property
    def mean_probabilities(self) -> list[float]:
        """[T + 1] The mean probability of a token (geometric), in per cent."""
        return [100 * exp(value / count) for value, count in zip(self.log_probs, self.tokens, strict=True)]

    @property
    def script_data(self) -> dict[str, Any]:
        """What a script needs, as JSON can hold it."""
        return {
            "levels": self.highlighted.levels,
            "best": self.highlighted.best,
            "sums": self.sums,
            "logProbs": self.log_probs,
            "tokens": self.tokens,
        }


def build_answer_view(item: GeneratedAttribution) -> AnswerView:
    """The drawing of one attribution."""
    texts = [number for number, _, _ in item.unit_spans]
    names, places = item.exchange.names, item.exchange.places
    sections = []
    for number, (name, place, own) in enumerate(zip(names, places, item.exchange.is_source, strict=True)):
        extents = [(start, end) if text == number else (0, 0) for text, start, end in item.unit_spans]
        sections.append(Section(name, own, cut_text(item.prompt[slice(*place)], extents)))
    inside = np.array(texts)[:, None] == np.arange(len(names))
    rows = np.concatenate([item.scores.sum(0, keepdims=True), item.scores]).astype(np.float64)
    log_probs = [float(item.log_probs.sum()), *item.log_probs.tolist()]
    tokens = [len(item.exchange.tokens), *(end - start for start, end in item.spans)]
    return AnswerView(highlight_generated(item), sections, (rows @ inside).tolist(), log_probs, tokens)
