"""A language model in a person's place: do explanations help it to foretell another model?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exegete.errors import ExegeteError
from exegete.metrics.simulatability import simulatability_gain
from exegete.models import ExplainedModel
from exegete.reports.attributions import Attribution

BATCH = 16


class ChatSimulation(NamedTuple):
    """Shares of right guesses without and with explanations, and the gain as a share of the possible one."""

    unexplained: float
    explained: float
    gain: float


def simulate_with_chat(
    simulator: ExplainedModel, explanations: Sequence[Attribution], words: int = 5
) -> ChatSimulation:
    """Asks a prompted model what another one predicts, from the text alone and with its most important words named.

    Args:
        simulator: a causal language model as a classifier (`exegete.load(…, task="prompt", template=…)`), whose labels
            have the names of the explained model's. Its template asks the question, best after a few answered ones.
        explanations: texts, what the explained model predicts of them, and scores of its prediction.
        words: how many are named, in the order of the text.

    Raises:
        ExegeteError: no explanations, or a label that the simulator has no name for.
    """
    if not explanations:
        raise ExegeteError("there is nothing to foretell: no explanation was given")
    truth = np.array([simulator.label_id(item.prediction_label) for item in explanations])
    plain = [" ".join(item.texts) for item in explanations]
    named = [", ".join(_select_top_words(item, words)) for item in explanations]
    told = [f"{text}\nImportant words: {best}" for text, best in zip(plain, named, strict=True)]
    unexplained, explained = (float((_predict_labels(simulator, texts) == truth).mean()) for texts in (plain, told))
    return ChatSimulation(unexplained, explained, simulatability_gain(explained, unexplained))


def _select_top_words(item: Attribution, words: int) -> list[str]:
    best = np.sort(np.argsort(-item.word_scores, kind="stable")[:words])
    return [item.words[index] for index in best]


def _predict_labels(simulator: ExplainedModel, texts: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    parts = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return np.concatenate([simulator.predict(simulator.encode(part)).cpu().numpy() for part in parts])
