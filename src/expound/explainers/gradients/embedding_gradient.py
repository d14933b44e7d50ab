"""The base of methods that use the gradient of one pass at the input embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.base import OutputExplainer, SinglePass
from expound.explainers.differentiation import compute_gradient, embed_with_gradient
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.passes.last_layer import skip_unread_positions

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

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """Compute the scores [B, L] from this pass."""
        assert outputs.embeddings is not None
        slope = compute_gradient(self.score(model, outputs, target), outputs.embeddings, keep_graph=keep_graph)
        return self.scores_from_gradient(slope, outputs.embeddings)

    def compute_each(self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor]) -> list[Tensor]:
        """Compute scores [B, L] for each target from one forward pass; short inputs share backward passes too."""
        count = count_targets_per_pass(batch.attended.numel())
        if min(count, len(targets)) == 1:
            return super().compute_each(model, batch, targets)
        with torch.enable_grad(), skip_unread_positions(model, batch):
            outputs = model(batch, embed_with_gradient(model, batch, keep_graph=False), self.capture)
            scores = torch.stack([self.score(model, outputs, target).sum() for target in targets])
        embeddings, results = outputs.embeddings, list[Tensor]()
        assert embeddings is not None
        # With `is_grads_batched` (vmap), rows of the identity select the targets of one backward pass.
        for selection in torch.eye(len(targets), dtype=scores.dtype, device=scores.device).split(count):
            (slopes,) = torch.autograd.grad(scores, embeddings, selection, retain_graph=True, is_grads_batched=True)
            results += self.scores_from_gradient(slopes, embeddings.detach()).unbind()
        return results
