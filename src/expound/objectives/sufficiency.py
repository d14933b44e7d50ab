"""IvRA's sufficiency: the top of an explanation alone should be enough for the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.objectives.base import TrainingStep
from expound.objectives.criterion import ErasureCriterion

Form = Literal["margin", "mae", "kl", "reverse_kl"]


@dataclass(frozen=True)
class SufficiencyLoss(ErasureCriterion):
    """Distance between the predictions on the top alone and on the whole input, mean over examples (IvRA, eq. 11).

    CE is −log p of the prediction on x (spans: the sum over start and end).

    Args: see `ErasureCriterion`, and
        margin: μ of the form `margin`.
        form: `margin`: μ + max(−μ, CE(top) − CE(x)), which is 0 if the top alone makes the prediction likelier by a
            factor of e^μ or more; `mae`: |CE(top) − CE(x)| (eq. 16); `kl`: KL(M(x) ‖ M(top)), which pulls the
            prediction on the top towards the whole input's; `reverse_kl`: KL(M(top) ‖ M(x)), as eq. 17 prints.
    """

    margin: float = 0.1
    form: Form = "margin"
    name: ClassVar[str] = "sufficiency"
    equation: ClassVar[str] = r"\mu + \max(-\mu, \text{CE}(\text{top}) - \text{CE}(x))"
    use: ClassVar[str] = "What the explanation names should be enough."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin <= 0:
            raise ExpoundError(f"the margin is above 0, got {self.margin}")

    def keep_positions(self, top: Tensor) -> Tensor:
        """Return the top positions [B, L]; all others are erased."""
        return top

    def compute_losses(self, step: TrainingStep, logits: Tensor, clean_logits: Tensor) -> Tensor:
        """Return the loss [B] of the prediction on the top alone against the whole input's prediction, see `form`."""
        if self.form == "kl":
            return answer_kl(step, clean_logits, logits)
        if self.form == "reverse_kl":
            return answer_kl(step, logits, clean_logits)
        target, log_probability = self.predicted_target(step), step.model.task.log_probability
        increase = log_probability(clean_logits, target) - log_probability(logits, target)
        if self.form == "mae":
            return increase.abs()
        # μ + max(−μ, z) = max(0, μ + z), with z = CE(top) − CE(x)
        return (self.margin + increase).clamp(min=0)


def answer_kl(step: TrainingStep, logits: Tensor, other_logits: Tensor) -> Tensor:
    """Return KL(P ‖ Q) [B] of two predictions: over classes; or summed over start and end, or over labels on or off."""
    task = step.model.task
    if task.predicts_number:
        raise ExpoundError("a regression has no probability: use form='mae' on classes or spans")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits, other_logits = logits.to(dtype), other_logits.to(dtype)
    p, q = task.log_distributions(logits), task.log_distributions(other_logits)
    return (p.exp() * (p - q)).flatten(1).sum(1)
