"""SMaT's attention explainer: one learned weight for each attention head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.data.registry import check_choices
from expound.explainers.learned.learned_attention import (
    NORMS,
    LearnedAttention,
    explained_positions,
    mean_head_logits,
    softmax_over,
)
from expound.models import Batch, ExplainedModel, Outputs

Normalizer = Literal["sparsemax", "softmax", "entmax15", "none"]
Layers = Literal["all", "last"]


class ParameterizedAttention(LearnedAttention):
    """softmax_m(Σ_h λ_h s^h_m), λ over the heads of all layers together (Fernandes et al. 2022, eq. 11). Unsigned.

    s^h_m is the mean over queries of head h's scaled logits before the softmax. Special tokens count as queries, and
    scores add up to 1. In a decoder, the mean for a key is over the queries that can see it.

    Args:
        n_layers: number of layers of the models to explain.
        n_heads: number of heads of each layer.
        normalizer: the function from `coefficients` to λ: `sparsemax`, `softmax`, `entmax15`, or the
            identity (`none`). All heads have equal weight before training.
        used_layers: use the heads of `all` layers or of the `last` one.
        special_tokens: give special tokens scores, as in the paper; otherwise the softmax is over content only.
    """

    card: ClassVar = MethodCard(
        name="parameterized_attention", family="learned", differentiable=True, cost="F", paper="Fernandes et al. 2022",
        learned=True, unit="share of attention",
        equation=r"s_m = \text{softmax}_m \left( \sum_h \lambda_h \, s^h_m \right)",
        use="Trained with `expound train smat`, it shows which heads teach a student best.",
        avoid="Do not use it before it is trained, other than as a baseline.",
    )  # fmt: skip

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        normalizer: Normalizer = "sparsemax",
        used_layers: Layers = "all",
        special_tokens: bool = True,
    ) -> None:
        super().__init__(n_layers, n_heads)
        self.normalizer, self.used_layers, self.special_tokens = normalizer, used_layers, special_tokens
        check_choices(self)
        used = n_layers if used_layers == "all" else 1
        # Any constant start gives a uniform λ: untrained, the scores are the mean over heads.
        self.coefficients = nn.Parameter(torch.full((used, n_heads), 1 / (used * n_heads)))

    @classmethod
    def for_model(
        cls, model: ExplainedModel, used_layers: Layers = "all", normalizer: Normalizer = "sparsemax", **options: Any
    ) -> Self:
        """Return the explainer for a model, untrained: the mean over the heads of all layers or of the last."""
        return cls(*model.attention_shape, normalizer, used_layers, **options)

    def head_weights(self) -> Tensor:
        """Return λ [N, H], or [1, H] for the last layer; it sums to 1 unless `normalizer` is `none`."""
        if self.normalizer == "none":
            return self.coefficients
        # One normalizer over the heads of all layers together, as in the paper; per layer it is another explainer.
        return NORMS[self.normalizer](self.coefficients.flatten(), -1).view_as(self.coefficients)

    def head_logits(self, model: ExplainedModel, batch: Batch, outputs: Outputs) -> Tensor:
        """Return the mean logits s [B, N, H, L]; they do not depend on the coefficients, so they can be cached."""
        self.check(outputs.queries)
        return mean_head_logits(model, batch, outputs)[:, -len(self.coefficients) :]

    def mix_heads(self, head_logits: Tensor, places: Tensor) -> Tensor:
        """Return scores [B, L] from the mean logits s [B, N, H, L]; 0 outside `places` [B, L]."""
        weights = self.head_weights().to(head_logits)
        return softmax_over(torch.einsum("nh,bnhm->bm", weights, head_logits), places)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return a distribution over real positions, or over content without `special_tokens`: [B, L]."""
        places = explained_positions(batch, self.special_tokens)
        return self.mix_heads(self.head_logits(model, batch, outputs), places)
