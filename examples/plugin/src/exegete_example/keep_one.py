"""Keep one: how much of the answer each word gives by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers import Explainer
from exegete.explainers.units import number_units, spread
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod


@dataclass(frozen=True)
class KeepOne(Explainer):
    """The target's probability when a word is all that is left, above that when nothing is. Signed.

    `perturbation`: what happens to the others: `mask`, `remove`, `pad` or `zero`.
    """

    perturbation: RemovalMethod = "mask"
    card: ClassVar = MethodCard(name="keep_one", family="perturbation", signed=True, cost="(words + 1) F")

    def passes(self, length: int) -> tuple[float, float]:
        """One a word and one without any, at most: equal inputs are run once."""
        return length + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """p_c(the word alone) − p_c(no word), [B, L]; a word's is shared equally by its tokens."""
        word = number_units(batch, "word")
        number = torch.arange(-1, max(int(word.max()), 0) + 1, device=batch.device)
        keep = (word == number[:, None, None]) & batch.content  # [words + 1, B, L]; of -1, none
        probability = model.task.score_probabilities(
            model.predict_perturbed(batch, keep | ~batch.content, self.perturbation), target
        )
        return spread((probability[1:] - probability[0]).T, word)
