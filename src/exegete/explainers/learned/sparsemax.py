"""Sparsemax over a short axis without sorting: what a distribution over features costs is then little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

START = -0.7


class _Projection(torch.autograd.Function):
    """The nearest points of the simplex over the last axis, and g − mean of g over their support."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:
        found = project(values)
        ctx.save_for_backward(*found)
        return found

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        return tuple(_project_gradient(found, slope) for found, slope in zip(ctx.saved_tensors, slopes, strict=True))


def _project_gradient(found: Tensor, slope: Tensor) -> Tensor:
    inside = (found > 0).to(slope)
    mean = (slope * inside).sum(-1, keepdim=True) / inside.sum(-1, keepdim=True)
    return (slope - mean) * inside


def short_sparsemax(values: Tensor, dim: int = -1) -> Tensor:
    """Sparsemax over an axis of some dozens of entries, as `short_sparsemaxes`."""
    (result,) = short_sparsemaxes([values.movedim(dim, -1)])
    return result.movedim(-1, dim)


def short_sparsemaxes(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Sparsemax over the last axis, of one length, of several tensors (Martins and Astudillo 2016): Newton's method.

    Σ max(z − τ, 0) = 1 is convex and falling in τ, so steps from below never pass the root and reach it after at most
    as many of them as there are entries, mostly two or three; the first, from anywhere, ends below. A row is done when
    a step leaves its support what it was.
    """
    result: tuple[Tensor, ...] = _Projection.apply(*values)  # type: ignore[no-untyped-call]
    return result


@torch.no_grad()
def project(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The projections, without a graph."""
    shifted = [(each - each.amax(-1, keepdim=True)).reshape(-1, each.shape[-1]) for each in values]
    with torch.autocast(values[0].device.type, enabled=False):
        found = find_thresholds(shifted)
    return tuple(
        rows.sub_(threshold).relu_().view(each.shape)
        for rows, threshold, each in zip(shifted, found, values, strict=True)
    )


def find_thresholds(blocks: Sequence[Tensor]) -> list[Tensor]:
    """τ [N, 1] of blocks of rows [N, d] whose largest entry is 0; the few rows that are left go on together."""
    found, left = [], []
    for rows in blocks:
        first, _ = _newton_step(rows, rows.new_full((len(rows), 1), START))
        second, support = _newton_step(rows, first)
        found.append(second)
        left.append(_find_unfinished(rows, second, support))
    rows, present = (torch.cat([each[own] for each, own in zip(x, left, strict=True)]) for x in (blocks, found))
    last, going = present.clone(), torch.arange(len(rows), device=rows.device)
    for _ in range(rows.shape[1]):
        if not len(going):
            break
        after, support = _newton_step(rows, present)
        after = torch.maximum(after, present)
        last[going] = after
        more = _find_unfinished(rows, after, support)
        rows, present, going = rows[more], after[more], going[more]
    for each, own, values in zip(found, left, last.split([len(own) for own in left]), strict=True):
        each[own] = values
    return found


def _newton_step(rows: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """τ after a step of Newton's method, and how many entries were above it before."""
    above, ones = (rows - threshold).relu_(), rows.new_ones(rows.shape[1])
    total = above @ ones
    support = above.sign_() @ ones
    return threshold + ((total - 1) / support)[:, None], support


def _find_unfinished(rows: Tensor, threshold: Tensor, support: Tensor) -> Tensor:
    """Which rows have another number of entries above their threshold."""
    above = torch.gt(rows, threshold, out=torch.empty_like(rows))
    return (above @ rows.new_ones(rows.shape[1]) != support).nonzero().squeeze(1)
