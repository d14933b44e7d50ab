"""Saliency: the norm of the gradient at each input embedding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.base import Aggregate
from expound.explainers.single_pass import EmbeddingGradient, sum_gradient

Norm = Literal["l2", "mean_absolute"]


@dataclass(frozen=True)
class Saliency(EmbeddingGradient):
    """Norm of the gradient of the target's logit at each input embedding (Simonyan et al. 2014). Unsigned.

    Examples:
        >>> explain("saliency", "good fine film")  # ∂ ln p/∂p = 1 / .7, for every word alike
        [1.429, 1.429, 1.429]

    Args:
        norm: `l2`, or `mean_absolute`, the mean of |∂f/∂E| over the embedding's dimensions.
        aggregate: `sum`, `l2` or `abs` over the dimensions, instead of `norm`; sums have a sign, and are zero in
            models with LayerNorm, where they are refused.
    """

    norm: Norm = "l2"
    aggregate: Aggregate | None = field(default=None, kw_only=True)
    card: ClassVar = MethodCard(
        name="saliency", family="gradients", differentiable=True, cost="F + B", paper="Simonyan et al. 2014",
        unit="slope of the {output}",
        equation=r"s_i = \lVert \partial f_c / \partial E_i \rVert_2",
        use="A quick look at where the output is sensitive, for one backward pass.",
        avoid="Do not use it to learn whether a word speaks for or against the class: its scores have no sign.",
    )  # fmt: skip

    @property
    def signed(self) -> bool:
        """Whether scores have a sign: sums do, norms do not."""
        return self.aggregate == "sum"

    @property
    def params(self) -> dict[str, Any]:
        """The method's parameters by name, without an `aggregate` that is not set."""
        return {name: value for name, value in super().params.items() if (name, value) != ("aggregate", None)}

    def scores_from_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """Compute ‖∂f_c/∂E_i‖, or the mean of its absolute values: [..., L]."""
        if self.aggregate == "sum":
            return sum_gradient(slope)
        if self.aggregate == "abs":
            return slope.abs().sum(-1)
        if self.aggregate == "l2" or self.norm == "l2":
            norms: Tensor = torch.linalg.vector_norm(slope, dim=-1)
            return norms
        return slope.abs().mean(-1)
