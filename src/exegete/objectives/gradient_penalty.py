"""A penalty on the gradient of the task's loss at the input embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.explainers.base import compute_gradient, embed_with_gradient
from exegete.models import Capture
from exegete.models.outputs import to_float32
from exegete.objectives.base import LabelledObjective, TrainingStep, task_losses


@dataclass(frozen=True)
class GradientPenalty(LabelledObjective):
    """The norm of the task loss's gradient at the input embeddings, mean over examples (Li et al. 2023, REGEX, eq. 4).

    ‖∂ℓ_b/∂E_b‖₂ over the positions and dimensions of each example, without padding. The norm of the weights, which
    the equation adds, is left to the optimizer's weight decay. Examples without a usable label do not count.

    `share`: see `Objective.share`.
    """

    weight: float = 0.01
    share: float = 1.0
    name: ClassVar[str] = "gradient_penalty"
    equation: ClassVar[str] = r"\frac{1}{B} \sum_b \lVert \partial \ell_b / \partial E_b \rVert_2"
    use: ClassVar[str] = "The answer should hardly move with the input."
    avoid: ClassVar[str] = "Step time is short: it takes a second derivative (`share` takes it on a part of the batch)."

    @property
    def capture(self) -> Capture:
        """Attention kernels with a second derivative, which fused kernels lack."""
        return Capture(differentiable_twice=True)

    @property
    def needs_embeddings(self) -> bool:
        """True: the gradient is taken at the input embeddings."""
        return True

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean gradient norm over the labelled examples, a scalar."""

        def compute_losses(logits: Tensor) -> Tensor:
            return task_losses(step.model, step.batch, logits)[0]

        gradient = differentiate_at_embeddings(step, self.name, compute_losses)
        gradient = gradient.masked_fill(~step.batch.attended[..., None], 0.0)
        # squares of half-precision gradients underflow
        gradient = to_float32(gradient)
        norms: Tensor = torch.linalg.vector_norm(gradient, dim=(1, 2))
        return self.mean_over_labelled(step, norms)


def differentiate_at_embeddings(step: TrainingStep, name: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient [B, L, d] at the input embeddings of a function of the logits: of a value per example [B].

    In training the gradient is taken of the step's own pass, with a graph; in evaluation of a separate one, without.

    Args:
        step: the step.
        name: the objective, for errors.
        function: it gets the logits of the batch and returns [B].
    """
    if step.context.training and torch.is_grad_enabled():
        return compute_gradient(function(step.outputs.logits), step.require_embeddings(name), keep_graph=True)
    # a separate pass: a backward pass here would free the graph of the shared one, which other terms may need
    with torch.enable_grad():
        embeddings = embed_with_gradient(step.model, step.batch, keep_graph=False)
        logits = step.model(step.batch, embeddings).logits
        return compute_gradient(function(logits), embeddings, keep_graph=False)
