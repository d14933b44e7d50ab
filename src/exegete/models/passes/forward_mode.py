"""How all answers move with one part of the input: derivatives carried forward, one pass for many parts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jvp, vmap

from exegete.models.batch import Batch
from exegete.models.explained import ExplainedModel
from exegete.models.passes.capture import Capture
from exegete.models.passes.last_layer import skip_unread_positions

TOKENS_PER_CHUNK = 4096
PASSES_PER_PART = 1.4
"""Forward passes that one more part costs, measured; the first costs one more."""


@torch.no_grad()
def compute_directional_derivatives(
    model: ExplainedModel, batch: Batch, embeddings: Tensor, direction: Tensor, parts: Tensor
) -> Tensor:
    """[U, B, ...] Derivatives of the logits along the direction, restricted to each part.

    They are what U passes forward give for all outputs, where backward each output takes a pass.

    Args:
        model: in evaluation mode.
        batch: B examples.
        embeddings: [B, L, d] where the derivative is taken.
        direction: [B, L, d].
        parts: [U, B, L] bool, which positions move.
    """

    def logits(at: Tensor) -> Tensor:
        found: Tensor = model(batch, at, Capture(differentiable_twice=True)).logits
        return found

    def along(part: Tensor) -> Tensor:
        slope: Tensor = jvp(logits, (embeddings,), (direction * part[..., None],))[1]
        return slope

    with skip_unread_positions(model):
        together = max(1, TOKENS_PER_CHUNK // embeddings.shape[:2].numel())
        found: Tensor = vmap(along, chunk_size=together)(parts.to(embeddings.dtype))
    return found
