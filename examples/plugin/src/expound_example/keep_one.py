"""Keep one: the target's probability with a single word left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.explainers import Explainer, MethodCard, number_units, spread
from expound.models import Batch, ExplainedModel, RemovalMethod


@dataclass(frozen=True)
class KeepOne(Explainer):
    """The target's probability with one word left, minus the probability with no word left. Signed.

    `perturbation`: what happens to the other words: `mask`, `remove`, `pad` or `zero`.
    """

    perturbation: RemovalMethod = "mask"
    card: ClassVar = MethodCard(name="keep_one", family="perturbation", signed=True, cost="(words + 1) F")

    def passes(self, length: int) -> tuple[float, float]:
        """Return at most one forward pass per word, plus one without words; identical inputs are run once."""
        return length + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Compute p_c(the word alone) − p_c(no word), [B, L], shared equally by the word's tokens."""
        word = number_units(batch, "word")
        number = torch.arange(-1, max(int(word.max()), 0) + 1, device=batch.device)
        # [words + 1, B, L]; content has no word -1, so the first mask keeps none.
        keep = (word == number[:, None, None]) & batch.content
        probability = model.score_perturbed(batch, keep | ~batch.content, target, self.perturbation)
        return spread((probability[1:] - probability[0]).T, word)
