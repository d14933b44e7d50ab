"""The base of methods that use the gradient of one pass at the input embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.base import OutputExplainer, SinglePass, TokenScores
from expound.explainers.token_targets import capture_head_input, split_by_target
from expound.models import Batch, ExplainedModel, Outputs

TOKENS_PER_BACKWARD_PASS, FEWEST_TARGETS = 768, 4
"""Token budget of a backward pass for several targets, and the fewest targets for which such a pass is worth it.

Measured on a Llama of 6 layers and 384 dimensions, one thread of a CPU, 32 targets, relative to one target at a time:
rows of 64 tokens .71, 96 .79, 160 .88, 288 1.06, 1,056 1.09.
"""


def count_targets_per_pass(tokens: int) -> int:
    """Return how many targets one backward pass through a batch of `tokens` tokens serves."""
    count = TOKENS_PER_BACKWARD_PASS // tokens
    if count < FEWEST_TARGETS:
        return 1
    return count


def sum_gradient(slope: Tensor) -> Tensor:
    """Return the sums [..., L] of gradients [..., L, d] over their dimensions.

    Raises:
        ExpoundError: all sums are zero but for rounding, as in a model whose LayerNorms subtract any constant that is
            added to an embedding.
    """
    total, size = slope.sum(-1), slope.detach().abs().sum(-1)
    rounding = min(100 * torch.finfo(slope.dtype).eps, 0.02)
    if size.any() and bool((total.detach().abs() <= rounding * size).all()):
        raise ExpoundError(
            "expected an aggregate of gradients other than 'sum', which is zero but for rounding where a LayerNorm "
            "follows the embeddings: use 'l2' or 'abs', or input_x_gradient for a sign"
        )
    return total


class EmbeddingGradient(OutputExplainer, SinglePass):
    """Base of methods that make scores of the input embeddings and the gradient of the target's score at them."""

    needs_embeddings: ClassVar[bool] = True

    @abstractmethod
    def scores_from_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """Compute scores [..., L] from the gradient and the embeddings, both [..., L, d]."""

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward and one backward pass."""
        return 1.0, 1.0

    def gradient_points(self, outputs: Outputs) -> Sequence[Tensor]:
        """Return the input embeddings [B, L, d]."""
        assert outputs.embeddings is not None
        return [outputs.embeddings]

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Compute the scores [B, L] from this pass."""
        return self.scores_from_gradient(gradients[0], *self.gradient_points(outputs))

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute scores [B, L] of each target from one forward pass; targets of short inputs share backward passes."""
        count = count_targets_per_pass(batch.attended.numel())
        if min(count, len(targets)) == 1 or torch.is_grad_enabled():
            return super().compute(model, batch, targets, outputs)
        with torch.enable_grad(), capture_head_input(model) as states:
            outputs = outputs or self.run_pass(model, batch, keep_graph=False)
            logits = outputs.logits
            resolved = [model.task.predict(logits.detach(), batch) if given is None else given for given in targets]
            scores = [self.score(model, outputs, target) for target in resolved]
            whole = torch.stack([score.sum() for score in scores])
            slopes = split_by_target(model, batch, scores, resolved, states)
        root, weights = whole, torch.eye(len(targets), dtype=whole.dtype, device=whole.device)
        if slopes is not None:
            root, weights = states[0], torch.stack(slopes)
        (embeddings,), explanations = self.gradient_points(outputs), list[TokenScores]()
        # With `is_grads_batched` (vmap), one backward pass serves several targets.
        for selection in weights.split(count):
            (gradients,) = torch.autograd.grad(root, embeddings, selection, retain_graph=True, is_grads_batched=True)
            for each in self.scores_from_gradient(gradients, embeddings.detach()).unbind():
                explanations.append(TokenScores(each, logits=logits.detach()))
        return explanations
