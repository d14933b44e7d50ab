"""Explanations that few words carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.explainers import Explainer
from exegete.explainers.attention.weights import AttentionRollout
from exegete.objectives.attribution_objective import AttributionObjective
from exegete.objectives.base import TrainingStep
from exegete.objectives.teacher import to_distribution

ROLLOUT = AttentionRollout()


@dataclass(frozen=True)
class AttributionEntropy(AttributionObjective):
    """−Σ p log p of the attribution's magnitudes as shares p of 1 over content, in nats; mean over examples.

    0 where one token has everything, log n where n tokens have alike. What is explained is the prediction.

    Args:
        explainer: any differentiable method.
        weight: of the term in the sum.
    """

    explainer: Explainer = ROLLOUT
    weight: float = 1.0
    name: ClassVar[str] = "attribution_entropy"

    def __call__(self, step: TrainingStep) -> Tensor:
        """The entropy, a scalar: a mean over the batch; 0 for an example without content."""
        content = step.batch.content
        target = step.model.resolve_target(step.batch, "predicted", step.outputs.logits)
        shares = to_distribution(self.compute_attribution(step, target).abs(), content)
        entropies: Tensor = torch.special.entr(shares.masked_fill(~content, 1.0)).sum(1)
        return entropies.mean()
