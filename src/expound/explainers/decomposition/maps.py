"""The base of methods that multiply token-to-token maps through the layers, and how near shares are to their sum."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.explainers.base import Explainer, TokenScores
from expound.explainers.decomposition.trace import LayerState, Trace, read_traces
from expound.models import Batch, ExplainedModel, Outputs

Maps = Literal["up_to", "each"]

LARGEST_PRODUCT = 2.0**40
"""Products of maps are divided by a power of two above this, so that squares of scores still fit into float32."""


@dataclass(frozen=True)
class LayerMaps(Explainer):
    """Base of methods with a map M_l of how much position j contributes to position i in layer l: R_l = M_l R_{l-1}.

    Scores are the row of R_N where the prediction is read. No identity is added: the maps contain the residual. The
    maps of a deep pre-norm model are lengths of thousands, whose product no float32 holds: R_l is then divided by a
    power of two, the same for all positions and targets of an example, so only ratios within an example are defined.

    Args:
        layers: the content of `TokenScores.layers`: where the prediction is read, the row of the product R_l of the
            maps up to layer l (`up_to`), or of the map M_l of layer l alone (`each`).
        max_memory: bytes per chunk of the widest intermediate tensor.
    """

    returns_logits: ClassVar[bool] = True
    layers: Maps = "up_to"
    max_memory: int = 1 << 21

    @abstractmethod
    def compute_map(self, state: LayerState, rows: Tensor) -> Tensor:
        """Return M_l at the rows [R], from all positions: [R, L]."""

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute the scores example by example, without padding."""
        read = read_traces(model, batch, targets, self._compute_readout_rows)
        return [TokenScores(rows[:, -1], layers=rows[:, :-1], logits=logits) for rows, logits in read]

    def compute_maps(self, trace: Trace) -> list[Tensor]:
        """Return M_l [L, L] of every layer."""
        everywhere = torch.arange(len(trace.positions), device=trace.positions.device)
        return [self.compute_map(state, everywhere) for state in trace.layers]

    def _compute_readout_rows(self, trace: Trace, weights: Tensor) -> Tensor:
        """Return the readout's row [L] of each layer's matrix, then of R_N: [N + 1, L]."""
        everywhere = torch.arange(len(weights), device=weights.device)
        needed = weights.nonzero().flatten()
        weights = weights.to(trace.layers[0].x.dtype)
        read: list[Tensor] = []
        rolled: Tensor | None = None
        for number, state in enumerate(trace.layers, 1):
            # Of the last layer, only the rows that the readout weights are needed.
            last = number == len(trace.layers)
            rows = needed if last else everywhere
            own = self.compute_map(state, rows)
            rolled = own if rolled is None else own @ rolled
            # The last product has only the rows of one target, whose scale must not differ from other targets'.
            if not last:
                rolled = _rescale_large(rolled)
            shown = rolled if self.layers == "up_to" else own
            read.append(weights[rows] @ shown)
        assert rolled is not None
        return torch.stack([*read, weights[needed] @ rolled])


def _rescale_large(product: Tensor) -> Tensor:
    """Return a product of maps, divided by a power of two if its largest entry exceeds `LARGEST_PRODUCT`."""
    largest = product.detach().amax()
    if not largest > LARGEST_PRODUCT:
        return product
    return product / 2.0 ** int(torch.frexp(largest).exponent)


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
