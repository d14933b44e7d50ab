"""Correlations row by row: of values, and of their ranks."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8
SMALLEST = 1e-24
"""A variance below it counts as none, and has no gradient."""


def compute_pearson(one: Tensor, other: Tensor) -> Tensor:
    """[E] Pearson's correlation of each row of [E, M] and [E, M], by population moments; 0 where one is constant."""
    one, other = (x - x.mean(1, keepdim=True) for x in (one, other))
    deviations = [x.square().mean(1).clamp(min=SMALLEST).sqrt() for x in (one, other)]
    return (one * other).mean(1) / (deviations[0] * deviations[1] + EPSILON)


def order_content_first(content: Tensor) -> Tensor:
    """[B, L] Positions from the first content one on, those before it last; gaps stay."""
    first = content.long().argmax(1, keepdim=True)
    return (torch.arange(content.shape[1], device=content.device) + first) % content.shape[1]


def compute_spearman(one: Tensor, other: Tensor, counted: Tensor) -> Tensor:
    """Spearman's ρ of each row [N] over the entries `counted` [N, L]; equal values share the mean of their ranks.

    NaN for fewer than two entries, or where all entries of one side are equal.
    """
    ranked = [centre_ranks(compute_mean_ranks(values, counted), counted) for values in (one, other)]
    product = (ranked[0] * ranked[1]).sum(-1)
    norms = [ranks.square().sum(-1) for ranks in ranked]
    rho = product / (norms[0] * norms[1]).sqrt()
    return rho.masked_fill((norms[0] == 0) | (norms[1] == 0), torch.nan).clamp(-1, 1)


def compute_mean_ranks(values: Tensor, counted: Tensor) -> Tensor:
    """[N, L] Ranks from 1 of the counted entries of each row, equal ones share their mean; anything elsewhere."""
    filled = values.masked_fill(~counted, torch.inf).contiguous()
    ranked = filled.sort(-1).values
    below = torch.searchsorted(ranked, filled)
    up_to = torch.searchsorted(ranked, filled, right=True)
    return (below + up_to + 1).double() / 2


def centre_ranks(ranks: Tensor, counted: Tensor) -> Tensor:
    """[N, L] Minus the mean of each row's counted entries; 0 elsewhere."""
    count = counted.sum(-1, keepdim=True).clamp(min=1)
    mean = (ranks * counted).sum(-1, keepdim=True) / count
    return (ranks - mean) * counted
