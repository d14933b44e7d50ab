"""Input × gradient: the input embedding times its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers.base import OfOutput, SinglePass, gradient
from exegete.models import Batch, ExplainedModel, Outputs


@dataclass(frozen=True)
class InputXGradient(OfOutput, SinglePass):
    """Input embedding times the gradient of the target's logit, summed over d (Shrikumar et al. 2017). Signed."""

    card: ClassVar = MethodCard(
        name="input_x_gradient",
        family="gradients",
        signed=True,
        differentiable=True,
        cost="F + B",
        paper="Shrikumar et al. 2017",
    )
    on_embeddings: ClassVar[bool] = True

    def passes(self, length: int) -> tuple[float, float]:
        """One forward and one backward pass."""
        return 1.0, 1.0

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The inner product of each embedding and its gradient: Σ_d E_id ∂f_c/∂E_id."""
        assert outputs.embeddings is not None
        slope = gradient(self.score(model, outputs, target), outputs.embeddings, keep_graph=keep_graph)
        return (slope * outputs.embeddings).sum(-1)
