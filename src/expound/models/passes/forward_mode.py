"""Forward-mode derivatives: how all outputs change with one part of the input, by one pass per part."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jvp, vmap

from expound.models.batch import Batch, Capture
from expound.models.hugging_face import HuggingFaceModel
from expound.models.passes.hooks import skip_unread_positions

TOKENS_PER_CHUNK = 4096
PASSES_PER_PART = 1.4
"""Cost of one more part, measured in forward passes; the first part costs one more."""


@torch.no_grad()
def compute_directional_derivatives(
    model: HuggingFaceModel, batch: Batch, embeddings: Tensor, direction: Tensor, parts: Tensor
) -> Tensor:
    """Return the derivatives [U, B, ...] of the logits along the direction, restricted to each part.

    U passes give them for all outputs, while backward mode takes one pass per output.

    Args:
        model: in evaluation mode.
        batch: B examples.
        embeddings: [B, L, d] where the derivative is taken.
        direction: [B, L, d].
        parts: [U, B, L] bool, the positions that change.
    """

    def compute_logits(at: Tensor) -> Tensor:
        # Fused attention kernels have no forward-mode derivative.
        logits: Tensor = model(batch, at, Capture(differentiable_twice=True)).logits
        return logits

    def differentiate(part: Tensor) -> Tensor:
        slope: Tensor = jvp(compute_logits, (embeddings,), (direction * part[..., None],))[1]
        return slope

    with skip_unread_positions(model, batch):
        chunk = max(1, TOKENS_PER_CHUNK // embeddings.shape[:2].numel())
        slopes: Tensor = vmap(differentiate, chunk_size=chunk)(parts.to(embeddings.dtype))
    return slopes
