"""How close each position's share of a layer's attention block is to the block's whole answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from exegete.data.cards import MethodCard
from exegete.errors import unknown
from exegete.explainers.decomposition.maps import LayerMaps
from exegete.explainers.decomposition.trace import LayerState


@dataclass(frozen=True)
class Alti(LayerMaps):
    """Aggregation of layer-wise token-to-token interactions (Ferrando et al. 2022). Unsigned; rows sum to 1.

    T_i(x_j): what x_j adds, by attention and residual, to the attention block's answer y_i, its norm made linear;
    c_ij = max(0, ‖y_i‖₁ − ‖y_i − T_i(x_j)‖₁), rows normalised. Feed-forwards are left out. In pre-norm families the
    block has no norm behind it: T is the plain share and y the residual stream after attention. A position that
    attention cannot reach gets nothing; a row in which nothing is near stays zero.

    Args:
        distance: the norm's order, 1 or 2.
    """

    distance: int = 1
    card: ClassVar = MethodCard(
        name="alti", label="ALTI", family="decomposition", differentiable=True, cost="≈ 3 F",
        paper="Ferrando et al. 2022", unit="share of the contributions",
        equation=r"c_{ij} = \max(0, \lVert y_i \rVert_1 - \lVert y_i - T_i(x_j) \rVert_1), \; s = (C_N \cdots C_1)[q, "
        r":]",
        use="Scores from the contributions of each layer, not from attention weights alone. They are differentiable, "
        "so training can pull them towards rationales (`--guide alti`).",
        avoid="Do not use it when you need signs, or scores of one class.",
    )  # fmt: skip

    def compute_map(self, state: LayerState, rows: Tensor) -> Tensor:
        """The contribution matrix C of a layer at the rows: [R, L]."""
        answer, weights, vectors = compute_shares(state, rows)
        reached = (weights != 0).any(-1)
        far = self.compute_distances(answer, weights, vectors)
        near = (vector_norm(answer, self.distance) - far).clamp(min=0).masked_fill(~reached, 0).T
        return near / near.sum(-1, keepdim=True).clamp(min=torch.finfo(near.dtype).tiny)

    def compute_distances(self, answer: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        """‖T_i(x_j) − y_i‖ [L, R], in chunks of from-positions small enough for the processor's cache."""
        size = max(1, self.max_memory // (answer.numel() * answer.element_size()))
        parts = zip(weights.split(size), vectors.split(size), strict=True)
        if torch.is_grad_enabled():
            again = [checkpoint(_compute_distances, answer, w, v, self.distance, use_reentrant=False) for w, v in parts]
            return torch.cat(again)
        found = answer.new_empty(weights.shape[:2])  # written in place: small results between large ones tear the heap
        for part, (w, v) in zip(found.split(size), parts, strict=True):
            part.copy_(_compute_distances(answer, w, v, self.distance))
        return found


def compute_shares(state: LayerState, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The answer y [R, d], and T_i(x_j) as weights [L, R, H + 1] times vectors [L, H + 1, d]."""
    middle = state.middle[rows]
    if state.parts.norm_first:
        return middle, *state.decompose_middle(rows)
    norm = state.parts.norms[0]
    weights, vectors = state.decompose_middle(rows, norm.unscaled)
    return norm(middle), weights / middle.std(-1, correction=0)[:, None], vectors


def _compute_distances(answer: Tensor, weights: Tensor, vectors: Tensor, order: int) -> Tensor:
    """‖T_i(x_j) − y_i + 1e-6‖ [c, R]; the 1e-6 on every coordinate is the authors'."""
    difference = torch.baddbmm((answer - 1e-6).expand(len(weights), -1, -1), weights, vectors, alpha=-1)
    return vector_norm(difference, order)


def vector_norm(vectors: Tensor, order: int) -> Tensor:
    """Norms of order 1 or 2 over the last axis; several times as fast as `torch.linalg.vector_norm` over short axes."""
    if order == 1:
        return vectors.abs().sum(-1)
    if order == 2:
        return vectors.square().sum(-1).sqrt()
    raise unknown("order of a distance", str(order), ("1", "2"))
