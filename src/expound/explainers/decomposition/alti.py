"""ALTI: how close each position's share of an attention block is to the block's whole output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from expound.data.cards import MethodCard
from expound.errors import unknown
from expound.explainers.base import OF_DECOMPOSITION
from expound.explainers.decomposition.maps import LayerMaps
from expound.explainers.decomposition.trace import LayerState


@dataclass(frozen=True)
class Alti(LayerMaps):
    """Aggregation of layer-wise token-to-token interactions (Ferrando et al. 2022). Unsigned; rows sum to 1.

    T_i(x_j) is the contribution of x_j, by attention and residual, to the attention block's output y_i, with its norm
    linearized; c_ij = max(0, ‖y_i‖₁ − ‖y_i − T_i(x_j)‖₁), with rows normalized. Feed-forwards are ignored. In pre-norm
    families no norm follows the block: T is the plain share and y the residual stream after attention. A position
    that attention does not reach scores 0; a row without any near position stays zero. As in the authors' code, shares
    are divided by the standard deviation without the norm's eps, which y_i has: they sum to y_i but for eps/σ².

    Args:
        p: the norm's order, 1 or 2.
    """

    p: int = 1
    assumes: ClassVar = OF_DECOMPOSITION
    card: ClassVar = MethodCard(
        name="alti", label="ALTI", family="decomposition", differentiable=True, cost="≈ 3 F",
        paper="Ferrando et al. 2022", unit="share of the contributions",
        equation=r"c_{ij} = \max(0, \lVert y_i \rVert_1 - \lVert y_i - T_i(x_j) \rVert_1), \; s = (C_N \cdots C_1)[q, "
        r":]",
        use="Scores from the contributions of each layer, not from attention weights alone. They are differentiable, "
        "so training can pull them towards rationales (`--explainer alti`).",
        avoid="Do not use it when you need signs, or scores of one class.",
    )  # fmt: skip

    def compute_map(self, state: LayerState, rows: Tensor) -> Tensor:
        """Return the contribution matrix C of a layer at the rows [R]: [R, L]."""
        answer, weights, vectors = compute_shares(state, rows)
        # Unreached positions would get max(0, ‖y‖ − ‖y‖), which the authors' 1e-6 (below) can make positive.
        reached = (weights != 0).any(-1)
        far = self.compute_distances(answer, weights, vectors)
        near = (vector_norm(answer, self.p) - far).clamp(min=0).masked_fill(~reached, 0).T
        return near / near.sum(-1, keepdim=True).clamp(min=torch.finfo(near.dtype).tiny)

    def compute_distances(self, answer: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        """Return ‖T_i(x_j) − y_i‖ [L, R]."""
        # Chunks of source positions j fit into the processor's cache.
        size = max(1, self.max_memory // (answer.numel() * answer.element_size()))
        parts = zip(weights.split(size), vectors.split(size), strict=True)
        if torch.is_grad_enabled():
            # The differences [L, R, d] would not fit in memory, so they are recomputed in the backward pass.
            again = [checkpoint(_compute_distances, answer, w, v, self.p, use_reentrant=False) for w, v in parts]
            return torch.cat(again)
        # Written in place: small results allocated between large ones fragment the heap.
        distances = answer.new_empty(weights.shape[:2])
        for part, (w, v) in zip(distances.split(size), parts, strict=True):
            part.copy_(_compute_distances(answer, w, v, self.p))
        return distances


def compute_shares(state: LayerState, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output y [R, d], and T_i(x_j) as weights [L, R, H + 1] times vectors [L, H + 1, d]."""
    middle = state.middle[rows]
    if state.parts.norm_first:
        return middle, *state.decompose_middle(rows)
    # The linearized norm is g ⊙ (u − mean(u)) / std(y): centering and g apply to the vectors, the std to the weights.
    norm = state.parts.norms[0]
    weights, vectors = state.decompose_middle(rows, norm.apply_without_scale)
    return norm(middle), weights / middle.std(-1, correction=0)[:, None], vectors


def _compute_distances(answer: Tensor, weights: Tensor, vectors: Tensor, order: int) -> Tensor:
    """Return ‖T_i(x_j) − y_i + 1e-6‖ of a chunk [c, R]."""
    # The authors' code uses `torch.pairwise_distance`, which adds 1e-6 to every coordinate.
    difference = torch.baddbmm((answer - 1e-6).expand(len(weights), -1, -1), weights, vectors, alpha=-1)
    return vector_norm(difference, order)


def vector_norm(vectors: Tensor, order: int) -> Tensor:
    """Return norms of order 1 or 2 over the last axis."""
    # Several times as fast as `torch.linalg.vector_norm` over short axes.
    if order == 1:
        return vectors.abs().sum(-1)
    if order == 2:
        return vectors.square().sum(-1).sqrt()
    raise unknown("order of a distance", str(order), ("1", "2"))
