"""Sparsemax over a short axis without sorting: what a distribution over features costs is then little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
    as many of them as there are entries, mostly three or four.
    """
    result: Tensor = _Projection.apply(values.movedim(dim, -1))  # type: ignore[no-untyped-call]
    return result.movedim(-1, dim)


def projected(values: Tensor) -> Tensor:
    """The projection, without a graph."""
    values = values - values.amax(-1, keepdim=True)
    threshold = torch.full_like(values[..., :1], -1.0)
    left = (values + 1).clamp_(min=0)
    for _ in range(values.shape[-1]):
        step = (left.sum(-1, keepdim=True) - 1) / left.sign().sum(-1, keepdim=True)
        if not (step > 4 * torch.finfo(values.dtype).eps).any():
            break
        threshold += step.clamp_(min=0)
        left = (values - threshold).clamp_(min=0)
    return left
