"""LIME: a linear model of the predictions in the neighborhood of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.perturbation.coalitions import CoalitionMethod, Coalitions


@dataclass(frozen=True)
class Lime(CoalitionMethod):
    """Coefficients of a weighted ridge regression of the target's probability on the present units. Signed.

    Units are present with probability ½; the first sample is the whole input. A sample z has weight exp(−D² / 2w²),
    with D its cosine distance 1 − √(|z| / n) from the whole input (Ribeiro et al. 2016). The intercept has no penalty.

    Examples:
        >>> explain("lime?n_samples=8&alpha=0", "good fine film")  # probabilities add up: the words' parts
        [0.3, 0.2, 0.0]

    Args:
        kernel_width: the width w of the kernel.
        alpha: weight of the ridge penalty Σ coefficient².

    Other parameters: see `CoalitionMethod`.
    """

    kernel_width: float = 0.25
    alpha: float = 1.0
    card: ClassVar = MethodCard(
        name="lime", label="LIME", family="perturbation", signed=True, cost="min(n_samples, 2^words) F",
        paper="Ribeiro et al. 2016", unit="weight in a linear model of the {output}",
        equation=r"\min_w \sum_z \pi(z) (p_c(z) - w \cdot z)^2 + \alpha \lVert w \rVert_2^2",
        use="Use it to compare with LIME, or if the model gives no gradients.",
        avoid="Do not use it with few samples of a long text: the random draws then decide the order of the words.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel_width <= 0 or self.alpha < 0:
            raise ExpoundError(
                f"lime needs a kernel_width above 0 and an alpha of at least 0, got {self.kernel_width}, {self.alpha}"
            )

    def exact_weights(self, present: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return equal weights that sum to n_samples, so that the penalty has the same effect as with draws: [2^n]."""
        return np.full(len(present), self.n_samples / len(present))

    def draw(self, count: int, random: np.random.Generator) -> Coalitions:
        """Return sets with each unit present with probability ½, the first one with all units."""
        present = random.random((self.n_samples, count)) < 0.5
        present[0] = True
        return Coalitions(present, np.ones(len(present)))

    def solve(self, present: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """Return (Xᵀ W X + α I)⁻¹ Xᵀ W y, with X and y centered at their weighted means: [B, U].

        Raises:
            ExpoundError: the system is singular, which happens only without a penalty.
        """
        size = present.amax(1).sum(1, keepdim=True).clamp(min=1)
        distance = 1 - (present.sum(2) / size).sqrt()
        weights = weights * torch.exp(-(distance**2) / (2 * self.kernel_width**2))
        # Centring at the weighted means removes the intercept, so that it is not penalized.
        share = (weights / weights.sum(1, keepdim=True))[..., None]
        centered = present - (share * present).sum(1, keepdim=True)
        answers = values[..., None] - (share * values[..., None]).sum(1, keepdim=True)
        weighted = (weights[..., None] * centered).transpose(1, 2)
        # Units that an example does not have get a 1 on the diagonal: the batch stays solvable, their weight is 0.
        penalty = torch.where(present.any(1), self.alpha, present.new_ones(())).diag_embed()
        coefficients, singular = torch.linalg.solve_ex(weighted @ centered + penalty, weighted @ answers)
        if singular.any():
            raise ExpoundError("lime needs an alpha above 0 here: the samples do not tell all units apart")
        solved: Tensor = coefficients[..., 0]
        return solved
