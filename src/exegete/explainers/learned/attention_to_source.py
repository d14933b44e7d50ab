"""Attention of all heads, mixed by coefficients that were learned from ablations."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers.attention.weights import select_readout_row
from exegete.explainers.learned.base import FittedExplainer
from exegete.explainers.learned.learned_attention import LearnedAttention
from exegete.explainers.units import unit_membership
from exegete.models import Batch, Capture, ExplainedModel, Outputs


class AttentionToSource(LearnedAttention, FittedExplainer):
    """Σ_h w_h A^h[q, k], w over the heads of all layers, q where the answer is read (Cohen-Wang et al. 2025). Signed.

    A unit's score is the sum of its positions'; that of several tokens the mean over where each is predicted. The
    coefficients are fitted to the effects of ablations by `exegete train at2`.

    Args:
        n_layers: the layers of the models that it shall explain.
        n_heads: the heads of each of them.
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
        """The mean over all heads."""
        return cls(*model.attention_shape, **options)

    @property
    def capture(self) -> Capture:
        """Attention probabilities."""
        return Capture(attentions=True)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The mixture of what the heads look at: Σ_nh w_nh A^nh[q, :]."""
        found = [tuple(layer.shape[1:2]) for layer in outputs.attentions]
        if found != [(self.n_heads,)] * self.n_layers:
            raise ExegeteError(
                f"this {self.name} is for {self.n_layers} layers of {self.n_heads} heads, the model has {len(found)} "
                f"layers of {found[0][0] if found else 'no'} heads: use one made for this model"
            )
        weights = self.coefficients.to(outputs.attentions[0])
        mixed = torch.stack(
            [torch.einsum("h,bhqk->bqk", w, layer) for w, layer in zip(weights, outputs.attentions, strict=True)]
        ).sum(0)
        return select_readout_row(model, batch, mixed, target)

    def features(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, unit: Tensor) -> Tensor:
        """What every head gives to each unit from where the answer is read, layer by layer."""
        heads = torch.stack(
            [
                select_readout_row(model, batch, layer[:, head], target)
                for layer in outputs.attentions
                for head in range(layer.shape[1])
            ],
            -1,
        )
        return torch.einsum("blu,blf->buf", unit_membership(unit).to(heads), heads)
