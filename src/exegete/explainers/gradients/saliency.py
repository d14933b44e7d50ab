"""How fast the target's logit changes with each input embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.errors import unknown
from exegete.explainers.gradients.embedding_gradient import EmbeddingGradient

Norm = Literal["l2", "mean_absolute"]


@dataclass(frozen=True)
class Saliency(EmbeddingGradient):
    """Norm of the gradient of the target's logit at each input embedding (Simonyan et al. 2014). Unsigned.

    `norm`: `l2`, or `mean_absolute`, the mean of |∂f/∂E| over the embedding's dimensions.
    """

    norm: Norm = "l2"
    card: ClassVar = MethodCard(
        name="saliency", family="gradients", differentiable=True, cost="F + B", paper="Simonyan et al. 2014"
    )

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise unknown("norm", self.norm, get_args(Norm))

    def of_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """‖∂f_c/∂E_i‖, or the mean of its absolute values."""
        return slope.norm(dim=-1) if self.norm == "l2" else slope.abs().mean(-1)
