"""Simulatability with a language model in place of a person: do explanations help it to predict another model?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exegete.errors import ExegeteError
from exegete.metrics.simulatability import simulatability_gain
from exegete.models import ExplainedModel
from exegete.reports.explanations import Explanation

BATCH_SIZE = 16


class ChatSimulation(NamedTuple):
    """Shares of correct guesses without and with explanations, and the gain as a share of the largest possible one."""

    unexplained: float
    explained: float
    gain: float


def simulate_with_chat(
    simulator: ExplainedModel, explanations: Sequence[Explanation], words: int = 5
) -> ChatSimulation:
    """Ask a prompted model what another model predicts, from the text alone and with its most important words named.

    Args:
        simulator: a causal language model as a classifier (`exegete.load(…, task="prompt", template=…)`), with the
            label names of the explained model. Its template asks the question, best after a few answered examples.
        explanations: texts, the explained model's predictions, and the scores of these predictions.
        words: number of important words to name, in the order of the text.

    Raises:
        ExegeteError: no explanations, or a label that the simulator does not have.
    """
    if not explanations:
        raise ExegeteError("expected at least one explanation to simulate, got none")
    truth, plain_texts, explained_texts = [], [], []
    for item in explanations:
        truth.append(simulator.label_id(item.prediction.text if item.prediction else ""))
        text = " ".join(item.texts)
        plain_texts.append(text)
        explained_texts.append(f"{text}\nImportant words: {', '.join(_select_top_words(item, words))}")
    unexplained = float((_predict_labels(simulator, plain_texts) == truth).mean())
    explained = float((_predict_labels(simulator, explained_texts) == truth).mean())
    return ChatSimulation(unexplained, explained, simulatability_gain(explained, unexplained))


def _select_top_words(item: Explanation, words: int) -> list[str]:
    # Words are named in the order of the text: ordered by score, they would tell more than which words matter.
    places = np.sort(np.argsort(-item.scores[0], kind="stable")[:words])
    return [item.units[place].text for place in places]


def _predict_labels(simulator: ExplainedModel, texts: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    labels = []
    for start in range(0, len(texts), BATCH_SIZE):
        batch = simulator.encode(texts[start : start + BATCH_SIZE])
        labels.append(simulator.predict(batch).cpu().numpy())
    return np.concatenate(labels)
