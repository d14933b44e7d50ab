"""How steeply the task's loss rises around the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.explainers.base import compute_gradient, embed_with_gradient
from exegete.models import Capture
from exegete.objectives.base import LabelledObjective, TrainingStep
from exegete.objectives.cross_entropy import task_losses


@dataclass(frozen=True)
class GradientPenalty(LabelledObjective):
    """Norm of the task loss's gradient at the input embeddings, mean over examples (Li et al. 2023, REGEX, eq. 4).

    ‖∂ℓ_b/∂E_b‖₂ over the positions and dimensions of each example, without padding. The norm of the weights, which
    the equation adds, is left to the optimizer's weight decay. Examples without a usable label do not count.

    `share`: see `Objective.share`.
    """

    weight: float = 0.01
    share: float = 1.0
    name: ClassVar[str] = "gradient_penalty"

    @property
    def capture(self) -> Capture:
        """Attention with a second derivative."""
        return Capture(differentiable_twice=True)

    @property
    def needs_embeddings(self) -> bool:
        """A gradient is taken there."""
        return True

    def __call__(self, step: TrainingStep) -> Tensor:
        """The norm of the loss's gradient at the embeddings, a scalar: a mean over labelled examples."""
        keep_graph = step.context.training and torch.is_grad_enabled()
        slope = _loss_gradient(step) if keep_graph else _separate_loss_gradient(step)
        slope = slope.masked_fill(~step.batch.attended[..., None], 0.0)
        precise = slope.to(torch.promote_types(slope.dtype, torch.float32))
        norms: Tensor = torch.linalg.vector_norm(precise, dim=(1, 2))
        return self.mean_over_labelled(step, norms)


def _loss_gradient(step: TrainingStep) -> Tensor:
    """∂ℓ_b/∂E_b [B, L, d] with its graph."""
    if step.embeddings is None:
        raise ExegeteError("the gradient penalty needs a pass that ran on input embeddings")
    return compute_gradient(step.task_losses, step.embeddings, keep_graph=True)


def _separate_loss_gradient(step: TrainingStep) -> Tensor:
    """The same without a graph, by a pass of its own: the shared one's graph may serve other terms."""
    with torch.enable_grad():
        embeddings = embed_with_gradient(step.model, step.batch, keep_graph=False)
        losses, _ = task_losses(step.model, step.batch, step.model(step.batch, embeddings).logits)
        return compute_gradient(losses, embeddings, keep_graph=False)
