"""Proximity of each head's share to the whole sum, without a tensor of all shares."""

from __future__ import annotations

import torch
from torch import Tensor

from expound.explainers.decomposition.trace import LayerState

SMALLEST_COORDINATES = 8
"""Number of coordinates checked first: those where the whole is smallest, which a share exceeds first."""


class HeadVectors:
    """u_hj [H·L, d], the output of each head of a layer for each position at attention weight 1."""

    def __init__(self, state: LayerState) -> None:
        self.values = state.values
        self.columns = state.parts.output.weight.T.unflatten(0, (len(state.values), -1))
        self.vectors = (self.values @ self.columns).flatten(0, 1)
        self.by_coordinate = self.vectors.T.contiguous()
        self.reach = self.vectors.abs().amax(1)

    @torch.no_grad()
    def compute_nearness(self, weights: Tensor, wholes: Tensor, shift: float = 0.0) -> Tensor:
        """Return ‖m_i‖₁ − ‖a_ihj u_hj − m_i + shift‖₁ [R, H, L] for wholes m [R, d] and weights a ≥ 0 [R, H, L]."""
        # Per coordinate, |a u − p| = |p| − s a u + 2 max(0, s a u − |p|) with p = m − shift and its sign s. The middle
        # term is a product of matrices, without a tensor [R, H, L, d]. The last one is nonzero only where a share
        # exceeds the whole.
        points = wholes - shift
        signs = torch.where(points >= 0, 1.0, -1.0).to(points.dtype)
        sizes = points.abs()
        along = torch.einsum("hcd,rd->hrc", self.columns, signs) @ self.values.mT
        near = (weights * along.transpose(0, 1)).add_((wholes.abs() - sizes).sum(1)[:, None, None]).flatten(1)
        # Such coordinates are among those of smallest |p|, except for the few shares whose largest coordinate exceeds
        # the next |p|; these are computed in full.
        least = sizes.topk(min(SMALLEST_COORDINATES + 1, sizes.shape[1]), largest=False).indices
        rows = zip(near, weights.flatten(1), signs, sizes, least, strict=True)
        for nearer, weight, sign, size, order in rows:
            few = order[:SMALLEST_COORDINATES]
            signed = self.by_coordinate[few].mul_(sign[few, None])
            over = torch.addcmul(size[few, None], signed, weight, value=-1).clamp_(max=0).sum(0)
            more = (weight * self.reach > size[order[-1]]).nonzero().flatten()
            shares = self.vectors[more].mul_(sign)
            over[more] = torch.addcmul(size, shares, weight[more, None], value=-1).clamp_(max=0).sum(1)
            nearer.add_(over, alpha=2)
        return near.view_as(weights)
