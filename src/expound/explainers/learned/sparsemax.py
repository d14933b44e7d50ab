"""Sparsemax over a short axis without sorting, so that distributions over features are cheap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

START = -0.7
"""First estimate of τ relative to the largest entry."""


class _Projection(torch.autograd.Function):
    """Projection onto the simplex over the last axis; the gradient is g − mean of g over the support."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:
        projections = project(values)
        ctx.save_for_backward(*projections)
        return projections

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(ctx.saved_tensors, gradients, strict=True)
        return tuple(_project_gradient(projection, gradient) for projection, gradient in pairs)


def _project_gradient(projection: Tensor, gradient: Tensor) -> Tensor:
    support = (projection > 0).to(gradient)
    mean = (gradient * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
    return (gradient - mean) * support


def short_sparsemax(values: Tensor, dim: int = -1) -> Tensor:
    """Return sparsemax over an axis of some dozens of entries, see `short_sparsemaxes`."""
    (result,) = short_sparsemaxes([values.movedim(dim, -1)])
    return result.movedim(-1, dim)


def short_sparsemaxes(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return sparsemax over the last axis of several tensors with last axes of one length (Martins and Astudillo 2016).

    The threshold τ solves Σ max(z − τ, 0) = 1 and is found by Newton's method. The sum is convex and decreasing in τ,
    so steps from below never pass the solution and reach it after at most as many steps as there are entries, mostly
    two or three; the first step, from any start, ends below. A row is finished once a step keeps its support.
    """
    result: tuple[Tensor, ...] = _Projection.apply(*values)  # type: ignore[no-untyped-call]
    return result


@torch.no_grad()
def project(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the projections of each tensor [.., d] onto the simplex, without a graph."""
    # The largest entry is subtracted: sparsemax does not change, and one start fits all rows.
    shifted = [(tensor - tensor.amax(-1, keepdim=True)).reshape(-1, tensor.shape[-1]) for tensor in values]
    with torch.autocast(values[0].device.type, enabled=False):
        thresholds = find_thresholds(shifted)
    projections = []
    for rows, threshold, tensor in zip(shifted, thresholds, values, strict=True):
        projections.append(rows.sub_(threshold).relu_().view(tensor.shape))
    return tuple(projections)


def find_thresholds(blocks: Sequence[Tensor]) -> list[Tensor]:
    """Return sparsemax's threshold τ [N, 1] of each row, for blocks of rows [N, d] whose largest entry is 0."""
    thresholds, unfinished = [], []
    # Two steps finish most rows; the others, of all blocks together, continue below.
    for rows in blocks:
        first, _ = _newton_step(rows, rows.new_full((len(rows), 1), START))
        second, support = _newton_step(rows, first)
        thresholds.append(second)
        unfinished.append(_find_unfinished(rows, second, support))
    rows = torch.cat([block[left] for block, left in zip(blocks, unfinished, strict=True)])
    current = torch.cat([threshold[left] for threshold, left in zip(thresholds, unfinished, strict=True)])
    final, running = current.clone(), torch.arange(len(rows), device=rows.device)
    for _ in range(rows.shape[1]):
        if not len(running):
            break
        after, support = _newton_step(rows, current)
        # Rounding can make a step go back, and the iteration alternate between two supports.
        after = torch.maximum(after, current)
        final[running] = after
        more = _find_unfinished(rows, after, support)
        rows, current, running = rows[more], after[more], running[more]
    parts = final.split([len(left) for left in unfinished])
    for threshold, left, values in zip(thresholds, unfinished, parts, strict=True):
        threshold[left] = values
    return thresholds


def _newton_step(rows: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Return τ [N, 1] after one step of Newton's method, and how many entries were above τ before it [N]."""
    above, ones = (rows - threshold).relu_(), rows.new_ones(rows.shape[1])
    # Products with ones are faster than sums over a short axis.
    total = above @ ones
    support = above.sign_() @ ones
    return threshold + ((total - 1) / support)[:, None], support


def _find_unfinished(rows: Tensor, threshold: Tensor, support: Tensor) -> Tensor:
    """Return the indices of the rows whose number of entries above their threshold is not `support` [N]."""
    above = torch.gt(rows, threshold, out=torch.empty_like(rows))
    return (above @ rows.new_ones(rows.shape[1]) != support).nonzero().squeeze(1)
