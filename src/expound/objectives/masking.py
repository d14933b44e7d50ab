"""The objectives of a model that learns to mask another model's input (Barkan et al. 2024, AML, eq. 4 to 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from expound.errors import ExpoundError, check_choice
from expound.explainers.attributive_masking import losses
from expound.explainers.attributive_masking.losses import Inverse, Sparsity
from expound.models import Batch
from expound.objectives.base import Objective, TrainingStep


@dataclass(frozen=True, kw_only=True)
class MaskingStep(TrainingStep):
    """A training step of a masking model G; `model` is the explained model F, `outputs` is its pass on whole inputs.

    `answer` [B, C]: probabilities of F on whole inputs, without a graph. `scores` [B, L']: the share of each token that
    the mask keeps, in the tokens of G; `own_content` [B, L']: which of them are content. `kept` and `without` [B, C]:
    logits of F under the mask and under the inverse mask.
    """

    answer: Tensor
    scores: Tensor
    own_content: Tensor
    kept: Tensor
    without: Tensor


@dataclass(frozen=True)
class PredictionPreservation(Objective):
    """Cross-entropy between the prediction under the mask and the prediction on the whole input (eq. 5)."""

    weight: float = 0.5
    name: ClassVar[str] = "prediction_preservation"

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the examples, a scalar."""
        step = require_masking_step(step, self.name)
        return losses.preservation(step.kept, step.answer).mean()


@dataclass(frozen=True)
class InverseMasking(Objective):
    """A loss that makes the predicted class unlikely under the inverse mask (eq. 6).

    Args:
        weight: λ_inv.
        form: `log` −log(1 − F_ŷ), `probability` F_ŷ, `negative_entropy` Σ F log F.
    """

    weight: float = 0.5
    form: Inverse = "log"
    name: ClassVar[str] = "inverse_masking"

    def __post_init__(self) -> None:
        check_choice("form of inverse masking", self.form, get_args(Inverse))

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the examples, a scalar."""
        step = require_masking_step(step, self.name)
        return losses.inverse(step.without, step.answer, self.form).mean()


@dataclass(frozen=True)
class MaskSparsity(Objective):
    """The share of the input that the mask keeps, mean over each example's content tokens (eq. 7).

    Args:
        weight: λ_a.
        form: `bce` −log(1 − a), `l1` a.
        warmup: training steps over which the term grows linearly from 0 to its full value.
    """

    weight: float = 0.5
    form: Sparsity = "bce"
    warmup: int = 0
    name: ClassVar[str] = "mask_sparsity"

    def __post_init__(self) -> None:
        check_choice("form of sparsity", self.form, get_args(Sparsity))

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the examples, a scalar."""
        step = require_masking_step(step, self.name)
        # the authors' code also counts padding and special tokens, so that λ_a depends on the padding
        value = losses.sparsity(step.scores, step.own_content, self.form).mean()
        is_warming_up = step.context.training and step.context.number < self.warmup
        if not is_warming_up:
            return value
        return value * (step.context.number / self.warmup)


def masking_objectives(weights: losses.MaskWeights) -> tuple[Objective, ...]:
    """Return the three terms of eq. 4 with these weights."""
    # terms of weight 0 are kept: their values are logged
    return (
        PredictionPreservation(weights.preservation),
        MaskSparsity(weights.sparsity, weights.sparsity_form, weights.sparsity_warmup),
        InverseMasking(weights.inverse, weights.inverse_form),
    )


def require_masking_step(step: TrainingStep, name: str) -> MaskingStep:
    """Return the step as a `MaskingStep`. Raises ExpoundError for a step of another trainer."""
    if not isinstance(step, MaskingStep):
        raise ExpoundError(f"{name} trains a model that masks another one's input: train it by the recipe aml")
    return step


def repeat_batch(batch: Batch) -> Batch:
    """Return the batch twice in one batch, so that the mask and its inverse take one pass."""
    return batch.select([*range(len(batch))] * 2)


def concat_inverse(scores: Tensor) -> Tensor:
    """Return a mask and its inverse below it [2B, L]."""
    return torch.cat([scores, 1 - scores])
