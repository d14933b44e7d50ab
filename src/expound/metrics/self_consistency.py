"""Self-consistency of generated text: do an answer and the reason that is given for it use the same inputs?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expound.data.alignment import find_sentence_ends
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers import Explainer, attribute
from expound.explainers.cite_answer import find_tokens
from expound.models import ExplainedModel
from expound.models.generation.examples import prompt_to_row
from expound.models.generation.model import GeneratingModel
from expound.reports.records import Extent
from expound.reports.text import progress_bar

ReasonFinder = Callable[[str], tuple[Extent, Extent] | None]
"""Returns the characters [start, end) of the answer and of the reason in a response; None without a reason."""


def find_reason(response: str) -> tuple[Extent, Extent] | None:
    """Return the first sentence as the answer and all others as its reason; None for a response of one sentence."""
    end = find_sentence_ends(response)[0]
    if not response[end:].strip():
        return None
    return (0, end), (end, len(response))


def explanation_consistency(
    model: ExplainedModel,
    examples: Sequence[Any],
    method: str | Explainer = "shapley_sampling",
    *,
    unit: UnitName = "word",
    find_parts: ReasonFinder = find_reason,
    **params: Any,
) -> NDArray[np.float64]:
    """Return how similarly the input contributes to each answer and to its stated reason [E] (CC-SHAP, 2024).

    The contributions of the prompt's units to each token are divided by the sum of their magnitudes and averaged, over
    the tokens of the answer and over those of the reason; the value is the cosine of both averages, from −1 to 1 (1:
    both use the same input). NaN without a reason, or if nothing contributes. It compares two outputs of the model: a
    model can give a consistent reason that is not why it answered so, hence this is self-consistency, not faithfulness
    (Parcalabescu and Frank 2024).

    The cost per example is that of one explanation by the method: all tokens share its passes if it removes input.

    Args:
        model: a language model from `expound.load(…, task="generation")`.
        examples: prompts or chats, with responses that have an answer and a reason; without a response the model gives
            one.
        method: an id or an explainer; the paper's are Shapley values.
        unit: the units of the prompt.
        find_parts: finds answer and reason in a response; default: the first sentence, and all others.
        params: parameters of the method, as `n_samples=200`.

    Raises:
        ExpoundError: another model, or parts outside of the response.
    """
    if not isinstance(model, GeneratingModel):
        raise ExpoundError(f"only generated text has reasons: load {type(model).__name__} with task='generation'")
    values: list[float] = []
    with progress_bar("explaining answers and their reasons", len(examples)) as report:
        for row in model.expand_examples([prompt_to_row(example) for example in examples]):
            values.append(_compare_parts(model, row, method, unit, find_parts, params))
            report(1)
    return np.asarray(values)


def _compare_parts(
    model: GeneratingModel, row: Any, method: str | Explainer, unit: UnitName, find_parts: ReasonFinder,
    params: dict[str, Any],
) -> float:  # fmt: skip
    """Return the cosine of the contributions to the answer and to the reason of one row with a response."""
    (exchange,) = model.encode([row]).exchanges or ()
    parts = find_parts(exchange.response)
    if parts is None:
        return float("nan")
    answer, reason = (range(*find_tokens(exchange, part)) for part in parts)
    targets = [(token, token + 1) for token in (*answer, *reason)]
    (item,) = attribute(model, [row], method, targets, unit=unit, show_progress=False, **params)
    scores = item.scores.astype(np.float64)
    return compare_contributions(scores[: len(answer)], scores[len(answer) :])


def compare_contributions(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the cosine of the mean contributions of U inputs to T tokens [T, U] and to other tokens [T', U].

    The contributions to a token are divided by the sum of their magnitudes; a token without any is left out.
    """
    means = []
    for scores in (one, other):
        size = np.abs(scores).sum(1, keepdims=True)
        shares = (scores / np.where(size > 0, size, np.nan))[size[:, 0] > 0]
        means.append(shares.mean(0) if len(shares) else np.full(scores.shape[1], np.nan))
    length = float(np.linalg.norm(means[0]) * np.linalg.norm(means[1]))
    return float(means[0] @ means[1]) / length if length else float("nan")
