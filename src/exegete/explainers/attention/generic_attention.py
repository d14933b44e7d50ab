"""Attention times its gradient, accumulated through the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from exegete.data.cards import MethodCard
from exegete.explainers.base import OfOutput, SinglePass, gradients
from exegete.models import Batch, Capture, ExplainedModel, Outputs


@dataclass(frozen=True)
class GenericAttention(OfOutput, SinglePass):
    """Relevance of each position for where the answer is read, by attention and its gradient (Chefer et al. 2021b).

    Ā = mean_h max(0, ∂f_c/∂A ⊙ A) of each layer; R = (I + Ā_N) ··· (I + Ā_1); the score is the row of R where the
    answer is read, its own entry set to 0. Unsigned. Clamping makes it no linear function of the logit.
    """

    card: ClassVar = MethodCard(
        name="generic_attention", family="attention", signed=False, differentiable=True, cost="F + B",
        paper="Chefer et al. 2021b",
    )  # fmt: skip

    @property
    def capture(self) -> Capture:
        """Attention probabilities."""
        return Capture(attentions=True)

    def passes(self, length: int) -> tuple[float, float]:
        """One forward and one backward pass."""
        return 1.0, 1.0

    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """The rows are multiplied through from the last layer down: O(N·L²) where one position is read."""
        maps = relevance_maps(self.score(model, outputs, target), outputs.attentions, keep_graph=keep_graph)
        readout = model.readout(batch, target).to(maps[-1].dtype)
        weights, positions = readout.topk(int((readout > 0).sum(1).max()))
        rows = nn.functional.one_hot(positions, readout.shape[1]).to(readout.dtype)
        for layer in reversed(maps):
            rows = rows + rows @ layer
        others = rows.scatter(2, positions[..., None], 0.0)
        return (weights[:, None] @ others)[:, 0]


def relevance_maps(score: Tensor, attentions: tuple[Tensor, ...], *, keep_graph: bool) -> list[Tensor]:
    """Ā [B, L, L] of every layer: mean_h max(0, ∂ score_b/∂A ⊙ A)."""
    slopes = gradients(score, attentions, keep_graph=keep_graph)
    return [(slope * layer).clamp(min=0).mean(1) for slope, layer in zip(slopes, attentions, strict=True)]
