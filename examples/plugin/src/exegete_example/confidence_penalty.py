"""Confidence penalty: answers that are less sure than the data makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exegete.objectives import Objective, TrainingStep


@dataclass(frozen=True)
class ConfidencePenalty(Objective):
    """−H(p) of the predicted distribution p, mean over examples (Pereyra et al. 2017)."""

    weight: float = 0.1
    name: ClassVar[str] = "confidence_penalty"

    def __call__(self, step: TrainingStep) -> Tensor:
        """Σ p log p, a scalar: a mean over the batch."""
        log_p = step.outputs.logits.log_softmax(-1)  # [B, C]
        negative_entropy: Tensor = (log_p.exp() * log_p).sum(-1).mean()
        return negative_entropy
