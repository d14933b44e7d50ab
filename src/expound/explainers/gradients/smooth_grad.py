"""SmoothGrad: the gradient, averaged over noisy copies of the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import Aggregate
from expound.explainers.gradients.paths import DimensionwiseExplainer, gradients_at, repeat_rows
from expound.explainers.seeding import example_seeds, gaussian_noise
from expound.explainers.single_pass import sum_gradient
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True)
class SmoothGrad(DimensionwiseExplainer):
    """‖mean over noise of ∂f_c/∂E at E + N(0, σ²)‖ (Smilkov et al. 2017).

    Examples:
        >>> explain("smooth_grad?output=prob", "good fine film")  # the gradient is 1 everywhere
        [1.0, 1.0, 1.0]

    Args:
        n_samples: noisy copies per example.
        stdevs: σ, as a share of the range of the example's own embeddings (words and images of a prompt: each range).
        seed: random seed; it determines the noise together with the example's content, for any batch and order.
        aggregate: how the mean gradient is reduced over the embedding's dimensions, see `DimensionwiseExplainer`;
            `sum` is zero in models with LayerNorm, and refused there.
    """

    n_samples: int = 50
    stdevs: float = 0.1
    seed: int = 0
    aggregate: Aggregate = field(default="l2", kw_only=True)
    card: ClassVar = MethodCard(
        name="smooth_grad", label="SmoothGrad", family="gradients", differentiable=True, cost="n_samples (F + B)",
        paper="Smilkov et al. 2017", unit="slope of the {output}",
        equation=r"s_i = \lVert \frac{1}{n} \sum_k \partial f_c / \partial E_i (E + \varepsilon_k) \rVert, \; "
        r"\varepsilon_k \sim \mathcal{N}(0, \sigma^2)",
        use="Use it when plain gradients look noisy and tens of passes are affordable.",
        avoid="Do not use it when you need a sign, or when cost matters: for the same number of passes, "
        "`integrated_gradients` gives scores whose sum can be checked.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_samples < 1:
            raise ExpoundError(f"smooth_grad needs n_samples of at least 1, got {self.n_samples}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward and one backward pass per noisy copy."""
        return float(self.n_samples), float(self.n_samples)

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Compute ‖1/n Σ_s ∇f_c(E + ε_s)‖, [B, L]."""
        embeddings = model.embed(batch)
        seeds = list(example_seeds(batch, self.seed))
        rows, numbers = repeat_rows(batch, self.n_samples)

        # Copy k of an example draws from its seed + k, so that copies can be computed in any pass.
        def add_noise(points: Tensor) -> Tensor:
            copies = rows[points]
            own = [seeds[row] + number for row, number in zip(copies.tolist(), numbers[points].tolist(), strict=True)]
            return embeddings[copies] + gaussian_noise(batch.select(copies), embeddings[copies], self.stdevs, own)

        total = torch.zeros_like(embeddings)
        for part in gradients_at(model, batch, target, rows, add_noise):
            total = total.index_add(0, rows[part.points], part.gradient / self.n_samples)
        if self.aggregate == "sum":
            return sum_gradient(total)
        return self.aggregate_dimensions(total)
