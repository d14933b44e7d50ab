"""Base of the methods that look at the gradient of one pass at the input embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from exegete.explainers.base import OutputExplainer, SinglePass, compute_gradient, embed_with_gradient
from exegete.models import Batch, ExplainedModel, Outputs
from exegete.models.passes.last_layer import skip_unread_positions

TOKENS_PER_BACKWARD_PASS, FEWEST_TARGETS = 768, 4
"""Tokens that a backward pass for several targets goes through, and the fewest targets that are worth one.

Measured on a Llama of 6 layers and 384 dimensions, one thread of a CPU, 32 targets, against one at a time: rows of 64
tokens .71, 96 .79, 160 .88, 288 1.06, 1,056 1.09.
"""


def count_targets_per_pass(tokens: int) -> int:
    """For how many targets one backward pass through a batch of so many tokens is taken."""
    together = TOKENS_PER_BACKWARD_PASS // tokens
    return together if together >= FEWEST_TARGETS else 1


class EmbeddingGradient(OutputExplainer, SinglePass):
    """Scores made of the input embeddings and the gradient of what is explained at them."""

    needs_embeddings: ClassVar[bool] = True

    @abstractmethod
    def scores_from_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """[..., L] from the gradient and the embeddings, both [..., L, d]."""

    def passes(self, length: int) -> tuple[float, float]:
        """One forward and one backward pass."""
        return 1.0, 1.0

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The method's scores at this pass."""
        assert outputs.embeddings is not None
        slope = compute_gradient(self.score(model, outputs, target), outputs.embeddings, keep_graph=keep_graph)
        return self.scores_from_gradient(slope, outputs.embeddings)

    def compute_each(self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor]) -> list[Tensor]:
        """One pass for all targets; back from one at a time, or in short rows from several in one batched pass."""
        together = count_targets_per_pass(batch.attended.numel())
        if min(together, len(targets)) == 1:
            return super().compute_each(model, batch, targets)
        with torch.enable_grad(), skip_unread_positions(model):
            outputs = model(batch, embed_with_gradient(model, batch, keep_graph=False), self.capture)
            scores = torch.stack([self.score(model, outputs, target).sum() for target in targets])
        embeddings, found = outputs.embeddings, list[Tensor]()
        assert embeddings is not None
        for chosen in torch.eye(len(targets), dtype=scores.dtype, device=scores.device).split(together):
            (slopes,) = torch.autograd.grad(scores, embeddings, chosen, retain_graph=True, is_grads_batched=True)
            found += self.scores_from_gradient(slopes, embeddings.detach()).unbind()
        return found
