"""Input × gradient: the input embedding times its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.gradients.paths import DimensionwiseExplainer, Point
from expound.explainers.single_pass import EmbeddingGradient
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True)
class InputXGradient(DimensionwiseExplainer, EmbeddingGradient):
    """Input embedding times the gradient of the target's logit, aggregated over d (Shrikumar et al. 2017).

    Examples:
        >>> explain("input_x_gradient?output=prob", "good fine film")  # p adds up: the words' parts
        [0.3, 0.2, 0.0]
    """

    card: ClassVar = MethodCard(
        name="input_x_gradient", label="Input × gradient", family="gradients", signed=True, differentiable=True,
        cost="F + B", paper="Shrikumar et al. 2017", unit="part of the {output}",
        equation=r"s_i = \langle \partial f_c / \partial E_i, E_i \rangle",
        use="A cheap signed score in a training loop, or the first baseline of a comparison.",
        avoid="Do not use it without `random` beside it: in many comparisons it is no better than chance. Where the "
        "prediction is saturated in a word, that word's gradient is near zero.",
    )  # fmt: skip

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point]:
        """Yield one point: the gradient is taken at the embeddings, and multiplied by them."""
        embeddings = model.embed(batch)
        yield Point(embeddings, embeddings)

    def scores_from_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """Compute E_id ∂f_c/∂E_id, aggregated over d: [..., L]."""
        return self.aggregate_dimensions(slope * embeddings)
