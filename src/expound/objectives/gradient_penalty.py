"""Gradients at the input embeddings as a term of the loss, and a penalty on the gradient of the task's loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.models import Capture
from expound.models.batch import to_float32
from expound.objectives.base import LabeledObjective, Objective, TrainingStep, task_losses


class EmbeddingGradientObjective(Objective):
    """Base of objectives on the gradient of the model's prediction at its input embeddings."""

    @property
    def capture(self) -> Capture:
        """Input embeddings, and attention with a second derivative, which fused kernels lack."""
        return Capture(embeddings=True, differentiable_twice=True)

    def differentiate(self, step: TrainingStep, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the gradient [B, L, d] of a function of the logits, which returns one value per example [B].

        In training it is taken of the step's own pass, with a graph; in evaluation of a separate one, without.
        """
        if step.context.training and torch.is_grad_enabled():
            total, embeddings = function(step.outputs.logits).sum(), step.require_embeddings(self.name)
            return torch.autograd.grad(total, embeddings, create_graph=True)[0]
        # a separate pass: a backward pass here would free the graph of the shared one, which other terms may need
        with torch.enable_grad():
            embeddings = step.model.embed_with_gradient(step.batch, keep_graph=False)
            total = function(step.model(step.batch, embeddings).logits).sum()
            return torch.autograd.grad(total, embeddings)[0]


@dataclass(frozen=True)
class GradientPenalty(EmbeddingGradientObjective, LabeledObjective):
    """The norm of the task loss's gradient at the input embeddings, mean over examples (Li et al. 2023, REGEX, eq. 4).

    ‖∂ℓ_b/∂E_b‖₂ over the positions and dimensions of each example, without padding. The norm of the weights, which
    the equation adds, is left to the optimizer's weight decay. Examples without a usable label do not count.

    `batch_fraction`: see `Objective.batch_fraction`.
    """

    weight: float = 0.01
    batch_fraction: float = 1.0
    name: ClassVar[str] = "gradient_penalty"
    equation: ClassVar[str] = r"\frac{1}{B} \sum_b \lVert \partial \ell_b / \partial E_b \rVert_2"
    use: ClassVar[str] = "The prediction should hardly move with the input."
    avoid: ClassVar[str] = (
        "Step time is short: it takes a second derivative (`batch_fraction` takes it on a part of the batch)."
    )

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean gradient norm over the labeled examples, a scalar."""

        def compute_losses(logits: Tensor) -> Tensor:
            return task_losses(step.model, step.batch, logits)[0]

        gradient = self.differentiate(step, compute_losses)
        gradient = gradient.masked_fill(~step.batch.attended[..., None], 0.0)
        # squares of half-precision gradients underflow
        gradient = to_float32(gradient)
        norms: Tensor = torch.linalg.vector_norm(gradient, dim=(1, 2))
        return self.mean_over_labeled(step, norms)
