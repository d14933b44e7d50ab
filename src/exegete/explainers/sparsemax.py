"""Sparsemax over a short axis without sorting: what a distribution over features costs is then little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

START = -0.7


class _Projection(torch.autograd.Function):
    """The nearest point of the simplex over the last axis, and g − mean of g over its support."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        found = projected(values)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        slope: Tensor = slopes[0]
        inside: Tensor = (found > 0).to(slope)
        mean = (slope * inside).sum(-1, keepdim=True) / inside.sum(-1, keepdim=True)
        return (slope - mean) * inside


def short_sparsemax(values: Tensor, dim: int = -1) -> Tensor:
    """Sparsemax over the last axis (Martins and Astudillo 2016), for some dozens of entries: Newton's method.

    Σ max(z − τ, 0) = 1 is convex and falling in τ, so steps from below never pass the root and reach it after at most
    as many of them as there are entries, mostly two or three; the first, from anywhere, ends below.
    """
    result: Tensor = _Projection.apply(values.movedim(dim, -1))  # type: ignore[no-untyped-call]
    return result.movedim(-1, dim)


@torch.no_grad()
def projected(values: Tensor) -> Tensor:
    """The projection, without a graph."""
    rows = values.reshape(-1, values.shape[-1])
    rows = rows - rows.amax(-1, keepdim=True)
    with torch.autocast(values.device.type, enabled=False):
        found = rows.sub_(thresholds(rows)).relu_()
    return found.view(values.shape)


def thresholds(rows: Tensor) -> Tensor:
    """τ [N, 1] of rows [N, d] whose largest entry is 0; rows that are done take no part in the last steps."""
    ones, smallest = rows.new_ones(rows.shape[1]), 4 * torch.finfo(rows.dtype).eps
    found = _stepped(rows, _stepped(rows, rows.new_full((len(rows), 1), START), ones), ones)
    present, going = found, torch.arange(len(rows), device=rows.device)
    for _ in range(rows.shape[1]):
        after = torch.maximum(_stepped(rows, present, ones), present)
        further = (after - present > smallest).squeeze(1).nonzero().squeeze(1)
        if not len(further):
            break
        rows, present, going = rows[further], after[further], going[further]
        found[going] = present
    return found


def _stepped(rows: Tensor, threshold: Tensor, ones: Tensor) -> Tensor:
    """τ after a step of Newton's method."""
    left = (rows - threshold).relu_()
    total = left @ ones
    return threshold + ((total - 1) / (left.sign_() @ ones))[:, None]
