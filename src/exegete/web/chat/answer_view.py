"""The values that the page of an answer shows: the texts of the prompt, and their shades per part of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exegete.reports.explanations import Explanation
from exegete.reports.highlighted.highlight import HighlightedExplanation, highlight_explanation
from exegete.reports.highlighted.pieces import Piece, cut_text, find_extents


@dataclass(frozen=True)
class PromptSection:
    """A named text of the prompt, whether it is a document, and its pieces by unit."""

    name: str
    is_source: bool
    pieces: list[Piece]


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

    highlighted: HighlightedExplanation
    sections: list[PromptSection]
    sums: list[list[float]]
    log_probs: list[float]
    tokens: list[int]

    @property
    def mean_probabilities(self) -> list[float]:
        """The geometric mean of the token probabilities [T + 1], in per cent."""
        # The probability of a long text is too small for a bar, and would compare lengths rather than certainty.
        return [100 * float(np.exp(value / count)) for value, count in zip(self.log_probs, self.tokens, strict=True)]

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


def build_answer_view(item: Explanation) -> AnswerView:
    """Return the view of one explanation of generated text."""
    exchange, sections = item.exchange, []
    assert exchange is not None
    for number, (name, (start, end), is_source) in enumerate(
        zip(exchange.names, exchange.places, exchange.is_source, strict=True)
    ):
        sections.append(
            PromptSection(name, is_source, cut_text(exchange.prompt[start:end], find_extents(item, number)))
        )
    # [U, S] Membership of units in sections: the product with the scores sums them per section.
    is_in_section = np.array([unit.side for unit in item.units])[:, None] == np.arange(len(sections))
    rows = np.concatenate([item.scores.sum(0, keepdims=True), item.scores]).astype(np.float64)
    parts = [target.log_prob or 0.0 for target in item.targets]
    spans = [target.value for target in item.targets if isinstance(target.value, tuple)]
    tokens = [len(exchange.tokens), *(end - start for start, end in spans)]
    sums = (rows @ is_in_section).tolist()
    # Of an answer that repeats itself, the parts are not all of it.
    log_prob = item.metadata.get("response_log_prob", sum(parts))
    return AnswerView(highlight_explanation(item), sections, sums, [log_prob, *parts], tokens)
