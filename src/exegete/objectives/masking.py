"""The objectives of a model that learns to mask another model's input (Barkan et al. 2024, eq. 4 to 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.explainers.attributive_masking import losses
from exegete.explainers.attributive_masking.losses import Inverse, Sparsity
from exegete.models import Batch
from exegete.objectives.base import Objective, TrainingStep


@dataclass(frozen=True, kw_only=True)
class MaskingStep(TrainingStep):
    """A step of a masking model. `model` is the one that is explained; its `outputs` are those without a mask.

    `answer` [B, C]: what it answers, without a graph. `scores` [B, L']: how much of each token is kept, in the masking
    model's own tokens; `own_content` [B, L']: which of them are content. `kept` and `without` [B, C]: the explained
    model's logits under the mask and under its inverse.
    """

    answer: Tensor
    scores: Tensor
    own_content: Tensor
    kept: Tensor
    without: Tensor


@dataclass(frozen=True)
class PredictionPreservation(Objective):
    """Cross-entropy of the answer under the mask against the answer without it (eq. 5)."""

    weight: float = 0.5
    name: ClassVar[str] = "prediction_preservation"

    def __call__(self, step: TrainingStep) -> Tensor:
        """The unweighted term of this step, a scalar: a mean over the examples."""
        step = require_masking_step(step, self.name)
        return losses.preservation(step.kept, step.answer).mean()


@dataclass(frozen=True)
class InverseMasking(Objective):
    """A loss of the answer under the inverse mask: the predicted class should be unlikely (eq. 6).

    Args:
        weight: λ_inv.
        form: `log` −log(1 − F_ŷ), `probability` F_ŷ, `negative_entropy` Σ F log F.
    """

    weight: float = 0.5
    form: Inverse = "log"
    name: ClassVar[str] = "inverse_masking"

    def __post_init__(self) -> None:
        if self.form not in get_args(Inverse):
            raise unknown("form of inverse masking", self.form, get_args(Inverse))

    def __call__(self, step: TrainingStep) -> Tensor:
        """The unweighted term of this step, a scalar: a mean over the examples."""
        step = require_masking_step(step, self.name)
        return losses.inverse(step.without, step.answer, self.form).mean()


@dataclass(frozen=True)
class MaskSparsity(Objective):
    """How much the mask keeps, a mean over each example's tokens (eq. 7); padding and special tokens do not count.

    Args:
        weight: λ_a.
        form: `bce` −log(1 − a), `l1` a.
    """

    weight: float = 0.5
    form: Sparsity = "bce"
    name: ClassVar[str] = "mask_sparsity"

    def __post_init__(self) -> None:
        if self.form not in get_args(Sparsity):
            raise unknown("form of sparsity", self.form, get_args(Sparsity))

    def __call__(self, step: TrainingStep) -> Tensor:
        """The unweighted term of this step, a scalar: a mean over the examples."""
        step = require_masking_step(step, self.name)
        return losses.sparsity(step.scores, step.own_content, self.form).mean()


def masking_objectives(weights: losses.MaskWeights) -> tuple[Objective, ...]:
    """The three terms with these weights, those of weight 0 too: their figures are worth seeing."""
    return (
        PredictionPreservation(weights.preservation),
        MaskSparsity(weights.sparsity, weights.sparsity_form),
        InverseMasking(weights.inverse, weights.inverse_form),
    )


def require_masking_step(step: TrainingStep, name: str) -> MaskingStep:
    """The step, which has to be one of a masking model."""
    if not isinstance(step, MaskingStep):
        raise ExegeteError(f"{name} trains a model that masks another one's input: use it with a MaskingTrainer")
    return step


def repeat_batch(batch: Batch) -> Batch:
    """The batch for both masks in one pass."""
    return batch.select([*range(len(batch))] * 2)


def concat_inverse(scores: Tensor) -> Tensor:
    """A mask and its inverse, [2B, L]."""
    return torch.cat([scores, 1 - scores])
