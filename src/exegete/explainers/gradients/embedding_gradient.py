"""Base of the methods that look at the gradient of one pass at the input embeddings."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from exegete.explainers.base import OfOutput, SinglePass, gradient
from exegete.models import Batch, ExplainedModel, Outputs


class EmbeddingGradient(OfOutput, SinglePass):
    """Scores made of the input embeddings and the gradient of what is explained at them."""

    on_embeddings: ClassVar[bool] = True

    @abstractmethod
    def of_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """[B, L] from the gradient and the embeddings, both [B, L, d]."""

    def passes(self, length: int) -> tuple[float, float]:
        """One forward and one backward pass."""
        return 1.0, 1.0

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The method's scores at this pass."""
        assert outputs.embeddings is not None
        slope = gradient(self.score(model, outputs, target), outputs.embeddings, keep_graph=keep_graph)
        return self.of_gradient(slope, outputs.embeddings)
