"""An objective for sparse explanations: the entropy of attributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.explainers import Explainer
from expound.explainers.attention.weights import AttentionRollout
from expound.objectives.base import AttributionObjective, TrainingStep
from expound.objectives.explanation_guided import to_distribution

ROLLOUT = AttentionRollout()


@dataclass(frozen=True)
class AttributionEntropy(AttributionObjective):
    """The entropy −Σ p log p of attributions in nats, where p are magnitudes divided by their sum; mean over examples.

    It is 0 if one token has the whole attribution, and log n if n tokens have equal scores. The prediction is
    explained.

    Args:
        explainer: any differentiable explainer.
        weight: the factor of the term in the total loss.
    """

    explainer: Explainer = ROLLOUT
    weight: float = 1.0
    name: ClassVar[str] = "attribution_entropy"
    equation: ClassVar[str] = r"-\sum_i p_i \log p_i, \; p_i = |s_i| / \sum_j |s_j|"
    use: ClassVar[str] = "Explanations should be short."
    avoid: ClassVar[str] = "Alone with a large weight: one word gets everything."

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean entropy over the batch, a scalar; an example without content has entropy 0."""
        content = step.batch.content
        target = step.model.resolve_target(step.batch, "predicted", step.outputs.logits)
        shares = to_distribution(self.compute_attribution(step, target).abs(), content)
        # entr(1) = 0, and unlike entr(0) it has a finite derivative
        entropies: Tensor = torch.special.entr(shares.masked_fill(~content, 1.0)).sum(1)
        return entropies.mean()
