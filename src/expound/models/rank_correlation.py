"""Correlations of the rows of two matrices: of their values, and of their ranks."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8
SMALLEST = 1e-24
"""A smaller variance counts as zero, and has no gradient."""


def compute_pearson(one: Tensor, other: Tensor) -> Tensor:
    """Return Pearson's correlation [E] of each row of two matrices [E, M]; 0 if a row is constant."""
    one, other = (x - x.mean(1, keepdim=True) for x in (one, other))
    # Clamped before the root, whose derivative at 0 is infinite.
    deviations = [x.square().mean(1).clamp(min=SMALLEST).sqrt() for x in (one, other)]
    return (one * other).mean(1) / (deviations[0] * deviations[1] + EPSILON)


def order_content_first(content: Tensor) -> Tensor:
    """Return an order [B, L] of positions that begins with the first content position and wraps around."""
    first = content.long().argmax(1, keepdim=True)
    return (torch.arange(content.shape[1], device=content.device) + first) % content.shape[1]


def merge_close(values: Tensor, tolerance: float) -> Tensor:
    """Return the values [N, L]; values that differ by rounding alone become the lowest of them.

    Neighbors in order are merged if they differ by at most `tolerance` times the largest magnitude of their row.
    """
    ordered, order = values.sort(-1)
    largest = values.abs().masked_fill(~values.isfinite(), 0).amax(-1, keepdim=True)
    # `not ≤`: a difference of infinities is NaN, and starts a new value.
    is_new = ~(ordered.diff(dim=-1) <= tolerance * largest)
    starts = torch.nn.functional.pad(is_new, (1, 0), value=True)
    place = torch.arange(values.shape[-1], device=values.device).where(starts, 0).cummax(-1).values
    return torch.empty_like(values).scatter(-1, order, ordered.gather(-1, place))


def compute_spearman(one: Tensor, other: Tensor, counted: Tensor) -> Tensor:
    """Return Spearman's ρ [N] of each row of two matrices [N, L], over the entries in `counted` [N, L].

    Equal values share the mean of their ranks. ρ is NaN for fewer than two entries, or if a row is constant.
    """
    ranked = [center_ranks(compute_mean_ranks(values, counted), counted) for values in (one, other)]
    product = (ranked[0] * ranked[1]).sum(-1)
    norms = [ranks.square().sum(-1) for ranks in ranked]
    rho = product / (norms[0] * norms[1]).sqrt()
    # Rounding may bring the quotient just outside [−1, 1].
    return rho.masked_fill((norms[0] == 0) | (norms[1] == 0), torch.nan).clamp(-1, 1)


def compute_mean_ranks(values: Tensor, counted: Tensor) -> Tensor:
    """Return the ranks [N, L], from 1, of each row's counted entries; equal values share the mean; others undefined."""
    filled = values.masked_fill(~counted, torch.inf).contiguous()
    ranked = filled.sort(-1).values
    # The ranks of equal values are consecutive, so their mean follows from the first and the last of them.
    below = torch.searchsorted(ranked, filled)
    up_to = torch.searchsorted(ranked, filled, right=True)
    return (below + up_to + 1).double() / 2


def center_ranks(ranks: Tensor, counted: Tensor) -> Tensor:
    """Return the ranks [N, L] minus the mean of each row's counted entries; 0 at other entries."""
    count = counted.sum(-1, keepdim=True).clamp(min=1)
    mean = (ranks * counted).sum(-1, keepdim=True) / count
    return (ranks - mean) * counted
