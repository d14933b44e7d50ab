"""Gradients of the scores of a batch, for one or several targets of the same forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from expound.models import Batch, ExplainedModel


def embed_with_gradient(model: ExplainedModel, batch: Batch, *, keep_graph: bool) -> Tensor:
    """Return input embeddings [B, L, d] that require a gradient; `keep_graph`: attached to the embedding table."""
    embeddings = model.embed(batch)
    if keep_graph and embeddings.requires_grad:
        return embeddings
    return embeddings.detach().requires_grad_()


def compute_gradient(of: Tensor, at: Tensor, *, keep_graph: bool) -> Tensor:
    """Return the gradient of `of` [B] at a tensor [B, ...]: examples do not see each other, so each gets its own."""
    return compute_gradients(of, [at], keep_graph=keep_graph)[0]


def compute_gradients(
    of: Tensor, at: Sequence[Tensor], *, keep_graph: bool, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """Return the gradient of `of` [B] at each of several tensors, see `compute_gradient`.

    `retain_graph`: another backward pass through the same forward pass will follow.
    """
    return torch.autograd.grad(of.sum(), at, create_graph=keep_graph, retain_graph=keep_graph or retain_graph)
