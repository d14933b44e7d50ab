"""Input × gradient: the input embedding times its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers.base import OverDimensions, SinglePass, gradient
from exegete.models import Batch, ExplainedModel, Outputs


@dataclass(frozen=True)
class InputXGradient(OverDimensions, SinglePass):
    """Input embedding times the gradient of the target's logit, taken together over d (Shrikumar et al. 2017)."""

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
        """E_id ∂f_c/∂E_id, taken together over d; their sum is the inner product of embedding and gradient."""
        assert outputs.embeddings is not None
        slope = gradient(self.score(model, outputs, target), outputs.embeddings, keep_graph=keep_graph)
        return self.together(slope * outputs.embeddings)
