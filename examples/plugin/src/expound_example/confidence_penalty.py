"""Confidence penalty: a term of a training loss that keeps predictions from becoming overconfident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expound.objectives import Objective, TrainingStep


@dataclass(frozen=True)
class ConfidencePenalty(Objective):
    """The negative entropy −H(p) of the predicted distribution p, mean over examples (Pereyra et al. 2017)."""

    weight: float = 0.1
    name: ClassVar[str] = "confidence_penalty"
    equation: ClassVar[str] = r"\sum_c p_c \log p_c"

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean of Σ p log p over the batch, a scalar."""
        log_p = step.outputs.logits.log_softmax(-1)  # [B, C]
        negative_entropy: Tensor = (log_p.exp() * log_p).sum(-1)
        return negative_entropy.mean()
