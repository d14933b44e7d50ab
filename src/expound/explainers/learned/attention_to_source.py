"""AT2: attention of all heads, weighted by coefficients that were fitted to ablations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.explainers.attention.weights import select_readout_row
from expound.explainers.learned.base import FittedExplainer
from expound.explainers.learned.learned_attention import LearnedAttention
from expound.explainers.units import unit_membership
from expound.models import Batch, Capture, ExplainedModel, Outputs


class AttentionToSource(LearnedAttention, FittedExplainer):
    """Σ_h w_h A^h[q, k] over the heads h of all layers, with q the position of the readout. Signed.

    After Cohen-Wang et al. 2025. A unit's score is the sum over its positions; for a target of several tokens it is the
    mean over the positions that predict them. The coefficients are fitted to the effects of ablations by
    `expound train at2`.

    Args:
        n_layers: number of layers of the models to explain.
        n_heads: number of heads of each layer.
    """

    card: ClassVar = MethodCard(
        name="attention_to_source", family="learned", signed=True, differentiable=True, cost="F",
        paper="Cohen-Wang et al. 2025", learned=True, unit="weighted attention",
        equation=r"s_k = \sum_h w_h A^h[q, k], \; w \text{ fitted to ablations}",
        use="One model that answers many prompts: once fitted, an explanation takes one forward pass.",
        avoid="Do not use it for a single prompt: fitting costs more than `context_cite` does.",
    )  # fmt: skip

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__(n_layers, n_heads)
        self.coefficients = nn.Parameter(torch.full((n_layers, n_heads), 1 / (n_layers * n_heads)))

    @classmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """Return the explainer for a model, untrained: the mean over all heads."""
        return cls(*model.attention_shape, **options)

    @property
    def capture(self) -> Capture:
        """The attention probabilities."""
        return Capture(attentions=True)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return the weighted attention of the readout position, Σ_nh w_nh A^nh[q, :]: [B, L]."""
        self.check(outputs.attentions)
        weights = self.coefficients.to(outputs.attentions[0])
        # Heads are summed layer by layer before the row is selected: [B, N, H, L, L] is never stacked.
        mixed = []
        for weight, layer in zip(weights, outputs.attentions, strict=True):
            mixed.append(torch.einsum("h,bhqk->bqk", weight, layer))
        return select_readout_row(model, batch, torch.stack(mixed).sum(0), target)

    def features(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, unit: Tensor) -> Tensor:
        """Return the attention of every head from the readout position to each unit: [B, U, N · H]."""
        rows = []
        for layer in outputs.attentions:
            rows += [select_readout_row(model, batch, layer[:, head], target) for head in range(layer.shape[1])]
        heads = torch.stack(rows, -1)
        return torch.einsum("blu,blf->buf", unit_membership(unit).to(heads), heads)
