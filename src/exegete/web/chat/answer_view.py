"""The values that the page of an answer shows: the texts of the prompt, and their shades per part of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted.generated_view import HighlightedText, TextPiece, cut_text, highlight_generated


@dataclass(frozen=True)
class PromptSection:
    """A named text of the prompt, whether it is a document, and its pieces by unit."""

    name: str
    is_source: bool
    pieces: list[TextPiece]


@dataclass(frozen=True)
class AnswerView:
    """An answer and its prompt, for the T explained parts of the answer and the S sections of the prompt.

    Attributes:
        highlighted: The shades of the units.
        sections: The sections of the prompt.
        sums: Sums of scores [T + 1, S] per section; the first row is for the whole answer.
        log_probs: Log-probabilities [T + 1] of the whole answer and of each part.
        tokens: Numbers of tokens [T + 1] of the whole answer and of each part.
    """

    highlighted: HighlightedText
    sections: list[PromptSection]
    sums: list[list[float]]
    log_probs: list[float]
    tokens: list[int]

    @property
    def mean_probabilities(self) -> list[float]:
        """The geometric mean of the token probabilities [T + 1], in per cent."""
        # The probability of a long text is too small for a bar, and would compare lengths rather than certainty.
        return [100 * exp(value / count) for value, count in zip(self.log_probs, self.tokens, strict=True)]

    @property
    def script_data(self) -> dict[str, Any]:
        """The values that the page's script needs, serialisable as JSON."""
        return {
            "levels": self.highlighted.levels,
            "best": self.highlighted.best,
            "sums": self.sums,
            "logProbs": self.log_probs,
            "tokens": self.tokens,
        }


def build_answer_view(item: GeneratedAttribution) -> AnswerView:
    """Return the view of one attribution."""
    texts = [text for text, _, _ in item.unit_spans]
    names, places = item.exchange.names, item.exchange.places
    sections = []
    for number, (name, (start, end), is_source) in enumerate(zip(names, places, item.exchange.is_source, strict=True)):
        # Units of other texts get an empty span, so that a piece's index remains the number of its unit.
        spans = [(first, last) if text == number else (0, 0) for text, first, last in item.unit_spans]
        sections.append(PromptSection(name, is_source, cut_text(item.prompt[start:end], spans)))
    # [U, S] Membership of units in sections: the product with the scores sums them per section.
    is_in_section = np.array(texts)[:, None] == np.arange(len(names))
    rows = np.concatenate([item.scores.sum(0, keepdims=True), item.scores]).astype(np.float64)
    log_probs = [float(item.log_probs.sum()), *item.log_probs.tolist()]
    tokens = [len(item.exchange.tokens), *(end - start for start, end in item.spans)]
    return AnswerView(highlight_generated(item), sections, (rows @ is_in_section).tolist(), log_probs, tokens)
