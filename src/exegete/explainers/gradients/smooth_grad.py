"""The gradient, averaged over noisy copies of the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers.base import Aggregate, DimensionwiseExplainer
from exegete.explainers.gradients.paths import gradients_at, repeat_rows
from exegete.explainers.seeding import example_seeds
from exegete.models import Batch, ExplainedModel


@dataclass(frozen=True)
class SmoothGrad(DimensionwiseExplainer):
    """‖mean over noise of ∂f_c/∂E at E + N(0, σ²)‖ (Smilkov et al. 2017).

    Args:
        n_samples: noisy copies an example.
        noise: σ as a share of the range of the example's own embeddings.
        seed: with the example's own content it decides the noise; batching and order change nothing.
        aggregate: of the mean gradient over the embedding's dimensions, see `DimensionwiseExplainer`.
    """

    n_samples: int = 50
    noise: float = 0.1
    seed: int = 0
    aggregate: Aggregate = field(default="l2", kw_only=True)
    card: ClassVar = MethodCard(
        name="smooth_grad", label="SmoothGrad", family="gradients", differentiable=True, cost="n_samples (F + B)",
        paper="Smilkov et al. 2017", unit="slope of the {output}",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.n_samples < 1:
            raise ExegeteError(f"smooth_grad needs n_samples of at least 1, got {self.n_samples}")

    def passes(self, length: int) -> tuple[float, float]:
        """One each a noisy copy."""
        return float(self.n_samples), float(self.n_samples)

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """‖1/n Σ_s ∇f_c(E + ε_s)‖."""
        embeddings = model.embed(batch)
        own = list(example_seeds(batch, self.seed))
        rows, numbers = repeat_rows(batch, self.n_samples)

        def noisy(points: Tensor) -> Tensor:
            copies = zip(rows[points].tolist(), numbers[points].tolist(), strict=True)
            noise = [self._noise(batch, embeddings, row, own[row] + number) for row, number in copies]
            return embeddings[rows[points]] + torch.stack(noise)

        total = torch.zeros_like(embeddings)
        for part in gradients_at(model, batch, target, rows, noisy):
            total = total.index_add(0, rows[part.points], part.gradient / self.n_samples)
        return self.aggregate_dimensions(total)

    def _noise(self, batch: Batch, embeddings: Tensor, row: int, seed: int) -> Tensor:
        """[L, d], drawn for real positions in their order, wherever padding stands."""
        real = embeddings[row, batch.attended[row]]
        drawn = np.random.default_rng(seed).standard_normal(tuple(real.shape), np.float32)
        noise = torch.zeros_like(embeddings[row])
        noise[batch.attended[row]] = torch.from_numpy(drawn).to(noise) * self.noise * (real.max() - real.min())
        return noise
