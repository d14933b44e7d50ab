"""Right for the right reasons: no gradient of the prediction at words outside of the human rationale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models import Batch
from expound.models.batch import to_float32
from expound.objectives.base import TrainingStep
from expound.objectives.gradient_penalty import EmbeddingGradientObjective
from expound.objectives.rationale_alignment import get_rationale_mask


@dataclass(frozen=True)
class RightReasonsLoss(EmbeddingGradientObjective):
    """The squared gradient of the log-probabilities at words outside of the rationale (Ross et al. 2017, eq. 2).

    Σ_d (A_bd ∂/∂E_bd Σ_k log p_bk)², mean over examples, where the sum is over the dimensions of all input embeddings
    and A is 1 at content outside of the rationale, else 0. Special tokens are free. An example without annotation
    has A = 0 and counts as 0 in the mean, as in the paper; if an annotator marked no word, A is 1 everywhere.

    `weight`: λ. The term is near 0 in an untrained model and can be far above the cross-entropy in one that
    is sure of its predictions; a high weight keeps the model unsure. `batch_fraction`: see `Objective.batch_fraction`.

    Raises:
        ExpoundError: a weight below 0, or a task other than classification.
    """

    weight: float = 1.0
    batch_fraction: float = 1.0
    name: ClassVar[str] = "right_reasons"
    equation: ClassVar[str] = (
        r"\frac{1}{B} \sum_b \sum_d \left( A_{bd} \frac{\partial}{\partial E_{bd}} \sum_k \log p_{bk} \right)^2"
    )
    use: ClassVar[str] = "People marked what may matter, and the prediction should not react to anything else."
    avoid: ClassVar[str] = "Rationales leave out words that matter: the model may then not use them."

    @property
    def needs_rationale(self) -> bool:
        """True: gradients are penalized outside the rationale."""
        return True

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the examples, a scalar."""
        if not step.model.task.supports("classes"):
            raise ExpoundError(
                f"{self.name} is about the probabilities of classes: it does not apply to {step.model.task.name}"
            )
        gradient = self.differentiate(step, _sum_log_probabilities)
        # squares of half-precision gradients underflow
        squares = to_float32(gradient).square().sum(2)
        return squares.masked_fill(~select_irrelevant(step.batch), 0.0).sum(1).mean()


def select_irrelevant(batch: Batch) -> Tensor:
    """Return the content outside of the rationale [B, L] bool; all False for examples without annotation."""
    if batch.has_rationale is None:
        return torch.zeros_like(batch.content)
    return batch.content & ~get_rationale_mask(batch) & batch.has_rationale[:, None]


def _sum_log_probabilities(logits: Tensor) -> Tensor:
    """Return Σ_k log p_k [B]."""
    return to_float32(logits).log_softmax(-1).sum(-1)
