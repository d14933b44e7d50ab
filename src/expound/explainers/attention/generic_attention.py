"""Attention times its gradient, accumulated through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.explainers.base import OF_ATTENTION, OutputExplainer
from expound.explainers.single_pass import SinglePass
from expound.models import Batch, Capture, ExplainedModel, Outputs


@dataclass(frozen=True)
class GenericAttention(OutputExplainer, SinglePass):
    """Relevance of each position for where the prediction is read, by attention and its gradient (Chefer et al. 2021b).

    Ā = mean_h max(0, ∂f_c/∂A ⊙ A) of each layer; R = (I + Ā_N) ··· (I + Ā_1); the score is the row of R where the
    prediction is read, with its own entry set to 0. Unsigned. Because of the clamping it is not linear in the logit.

    In an encoder-decoder, a cross-attention adds R̄_ddᵀ Ā R̄_ee to R_de (eqs. 8 to 10), with d the decoder and e the
    encoder; R̄ is R with the rows of R − I divided by their sums.
    """

    assumes: ClassVar = OF_ATTENTION
    card: ClassVar = MethodCard(
        name="generic_attention", family="attention", signed=False, differentiable=True, cost="F + B",
        paper="Chefer et al. 2021b", unit="relevance, of no unit",
        equation=r"R = (I + \bar{A}_N) \cdots (I + \bar{A}_1), \; \bar{A}_l = \mathbb{E}_h \max(0, \partial f_c / "
        r"\partial A_l \odot A_l)",
        use="Attention weights that depend on the explained class, for one backward pass.",
        avoid="Do not use it when you need signs: negative relevance is set to zero.",
    )  # fmt: skip

    @property
    def capture(self) -> Capture:
        """Attention probabilities."""
        return Capture(attentions=True)

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward and one backward pass."""
        return 1.0, 1.0

    def gradient_points(self, outputs: Outputs) -> Sequence[Tensor]:
        """Return the attention of every layer."""
        return outputs.blocks or outputs.attentions

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return the weighted mean of R's rows at the read-out positions, without their own entries: [B, L]."""
        maps = model.scatter_attention(batch, compute_relevance_maps(gradients, self.gradient_points(outputs)))
        readout = model.readout_weights(batch, target).to(maps[-1].dtype)
        weights, positions = readout.topk(int((readout > 0).sum(1).max()))
        # Only rows of R that are read are multiplied through the layers, from the last one down: O(N·L²) for one row.
        rows = nn.functional.one_hot(positions, readout.shape[1]).to(readout.dtype)
        if outputs.blocks:
            rows = rows @ propagate_relevance(maps, len(outputs.attentions))
        else:
            for layer in reversed(maps):
                rows = rows + rows @ layer
        others = rows.scatter(2, positions[..., None], 0.0)
        return (weights[:, None] @ others)[:, 0]


def compute_relevance_maps(gradients: Sequence[Tensor], attentions: Sequence[Tensor]) -> list[Tensor]:
    """Return Ā [B, L, L] of every layer: mean_h max(0, ∂ score_b/∂A ⊙ A) (eq. 5)."""
    return [(slope * layer).clamp(min=0).mean(1) for slope, layer in zip(gradients, attentions, strict=True)]


def propagate_relevance(maps: Sequence[Tensor], decoding: int) -> Tensor:
    """Return the relevance R [B, L, L] after all maps; the last 2 · `decoding` are a decoder's, two per layer."""
    relevance = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device).expand_as(maps[0])
    within = relevance
    for number, layer in enumerate(maps):
        # In each decoder layer the cross-attention is the second of two maps.
        if number >= len(maps) - 2 * decoding and (len(maps) - number) % 2:
            spread = _normalize_rows(within)
            relevance = relevance + spread.mT @ layer @ spread
        else:
            relevance = relevance + layer @ relevance
            within = within + layer @ within
    return relevance


def _normalize_rows(within: Tensor) -> Tensor:
    """Return R̄: the rows of R − I divided by their sums, plus I (eqs. 8 and 9)."""
    one = torch.eye(within.shape[-1], dtype=within.dtype, device=within.device)
    others = within - one
    total = others.sum(-1, keepdim=True)
    return one + others / torch.where(total > 0, total, 1.0)
