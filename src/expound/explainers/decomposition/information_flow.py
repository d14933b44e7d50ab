"""Information flow routes: shares of the residual stream by proximity, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import OF_DECOMPOSITION, TokenScores
from expound.explainers.decomposition.maps import HeadVectors, LayerMaps
from expound.explainers.decomposition.trace import LayerState, Trace, read_traces
from expound.models import Batch, ExplainedModel, Outputs

SHIFT = 1e-6
"""Added to every coordinate of a difference, as in the authors' code."""
FLOOR = 1e-5
"""The smallest proximity of a part that attention reaches."""
ROWS = 64


@dataclass(frozen=True)
class InformationFlow(LayerMaps):
    """Information flow routes from where the prediction is read back to the input (Ferrando and Voita 2024). Unsigned.

    After attention the residual stream is m_i = x_i + Σ_jh a_ihj W_O v_hj (in post-norm families before its norm). The
    share of a part p is max(1e-5, ‖m‖₁ − ‖p − m‖₁), divided by the sum over all parts, and 0 for positions that
    attention does not reach. C_ij sums the heads, with the residual's share on the diagonal: rows sum to 1.

    Args:
        form: `rollout`, the row of C_N ··· C_1 where the prediction is read; or `routes`, the weakest link of the
            strongest route to each position: scores above τ mark the positions that the authors' graph at τ reaches.
        min_share: for a rollout: shares of single heads up to it are dropped, and the rest is normalized again.
    """

    form: Literal["rollout", "routes"] = "rollout"
    min_share: float = 0.0
    assumes: ClassVar = OF_DECOMPOSITION
    card: ClassVar = MethodCard(
        name="information_flow", family="decomposition", signed=False, differentiable=False, cost="≈ 3 F",
        paper="Ferrando and Voita 2024", unit="share of the contributions",
        equation=r"\text{share}(p) = \frac{\max(\epsilon, \lVert m \rVert_1 - \lVert p - m \rVert_1)}{\sum_{p^\prime} "
        r"\ldots}, \; s = (C_N \cdots C_1)[q, :]",
        use="Use it to trace routes through a decoder, for a prompt of moderate length.",
        avoid="Do not use it for long prompts: memory grows with the square of the length.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_share < 1:
            raise ExpoundError(f"expected a min_share from 0 to 1, got {self.min_share}")

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute the scores; `layers` of routes: the strongest route from the readout down to each layer's input."""
        if self.form == "rollout":
            return super().compute(model, batch, targets, outputs)
        read = read_traces(model, batch, targets, self.find_routes)
        return [TokenScores(layers[:, 0], layers=layers, logits=logits) for layers, logits in read]

    def compute_map(self, state: LayerState, rows: Tensor) -> Tensor:
        """Return C at the rows [R]: [R, L]."""
        heads = HeadVectors(state)
        parts = []
        for chunk in rows.split(ROWS):
            attention, residual = compute_shares(state, heads, chunk, self.min_share)
            parts.append(attention.sum(1).scatter_add_(1, chunk[:, None], residual[:, None]))
        return torch.cat(parts)

    def find_routes(self, trace: Trace, readout: Tensor) -> Tensor:
        """Return the weakest link [N, L] of the strongest route from the readout to each layer's input.

        The link of a feed-forward is the larger of its own share and the residual's, as both lead to one position.
        """
        strength = (readout > 0).to(trace.layers[0].x.dtype)
        routes = []
        for state in reversed(trace.layers):
            rows = (strength > 0).nonzero().flatten()
            links = self.compute_map(state, rows)
            through = torch.minimum(strength[rows], compute_feed_forward_shares(state, rows).amax(0))
            strength = torch.minimum(through[:, None], links).amax(0)
            routes.append(strength)
        return torch.stack(routes[::-1])


def compute_shares(
    state: LayerState, heads: HeadVectors, rows: Tensor, min_share: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the share of m of each head and position [R, H, L], and the residual's [R]; each row sums to 1.

    Shares up to `min_share` are dropped, and the rest is normalized again; a row without any left is 0.
    """
    weights = state.attention[:, rows].transpose(0, 1)
    wholes = state.middle[rows]
    near = heads.compute_nearness(weights, wholes, SHIFT).clamp_(min=FLOOR).masked_fill_(weights == 0, 0)
    residual = _compute_nearness(state.x[rows], wholes)
    attention, residual = _normalize_shares(near, residual)
    if min_share == 0:
        return attention, residual
    return _normalize_shares(attention * (attention > min_share), residual * (residual > min_share))


def compute_feed_forward_shares(state: LayerState, rows: Tensor) -> Tensor:
    """Return the feed-forward's share of the sum after it, and the residual's: [2, R], which sums to 1."""
    middle, whole = state.middle[rows], state.end[rows]
    before = middle if state.parts.norm_first else state.parts.norms[0](middle)
    near = torch.stack([_compute_nearness(whole - before, whole), _compute_nearness(before, whole)])
    return near / near.sum(0)


def _compute_nearness(part: Tensor, whole: Tensor) -> Tensor:
    """Return max(1e-5, ‖whole‖₁ − ‖part − whole‖₁) of vectors [R, d]: [R]."""
    return (whole.abs().sum(-1) - (part - whole + SHIFT).abs().sum(-1)).clamp(min=FLOOR)


def _normalize_shares(attention: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = (attention.sum((1, 2)) + residual).clamp(min=torch.finfo(residual.dtype).tiny)
    return attention / total[:, None, None], residual / total
