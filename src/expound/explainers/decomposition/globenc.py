"""GlobEnc: the length of each position's share of a layer's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.base import OF_DECOMPOSITION
from expound.explainers.decomposition.maps import LayerMaps
from expound.explainers.decomposition.trace import LayerState


@dataclass(frozen=True)
class GlobEnc(LayerMaps):
    """Global token attribution from the encoder layers' norms (Modarressi et al. 2022). Unsigned.

    N_ij is the length of the contribution of x_j to position i by attention and residual, through both linearized
    norms, without feed-forward and biases; rows do not sum to 1. In pre-norm families no norm follows either block, and
    N_ij is the length of the share in the residual stream after attention.
    """

    assumes: ClassVar = OF_DECOMPOSITION
    card: ClassVar = MethodCard(
        name="globenc", label="GlobEnc", family="decomposition", cost="≈ F", paper="Modarressi et al. 2022",
        unit="share of the contributions",
        equation=r"\mathcal{N}_{ij} = \lVert \text{norm}(\text{share of } x_j \text{ in } y_i) \rVert, \; s = "
        r"(\mathcal{N}_N \cdots \mathcal{N}_1)[q, :]",
        use="A better attention rollout for encoders, at little more than the cost of a forward pass.",
        avoid="Do not use it when you need a sign, or scores of one class. Feed-forward layers are left out. In deep "
        "pre-norm decoders nearly the whole score goes to the first token.",
    )  # fmt: skip

    def compute_map(self, state: LayerState, rows: Tensor) -> Tensor:
        """Return the matrix N of contribution lengths at the rows [R] of a layer: [R, L]."""
        norms = () if state.parts.norm_first else state.parts.norms

        def apply_norms(x: Tensor) -> Tensor:
            for norm in norms:
                x = norm.apply_without_scale(x)
            return x

        weights, vectors = state.decompose_middle(rows, apply_norms)
        scale = torch.ones_like(state.x[rows, :1])
        for norm, before in zip(norms, (state.middle, state.end), strict=False):
            scale = scale * norm.scale(before[rows])
        # A share is a mixture of H + 1 vectors of position j, so its squared length is wᵀ G w with their Gram matrix G:
        # no tensor [L, L, d] is needed.
        products = vectors @ vectors.mT
        size = max(1, self.max_memory // (weights[0].numel() * products.element_size()))
        squares = products.new_empty(weights.shape[:2])
        for part, w, p in zip(squares.split(size), weights.split(size), products.split(size), strict=True):
            part.copy_(((w @ p) * w).sum(-1))
        # Rounding can make squares slightly negative.
        return squares.clamp(min=0).sqrt().T * scale
