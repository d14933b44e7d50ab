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

FORWARD_SELECTION = 6
"""The most features that the `lime` package selects one by one; more are those with the largest coefficients."""
SELECTION_ALPHA = 0.01
"""The ridge penalty of the model whose largest coefficients the `lime` package selects."""
TINY = 1e-12


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
        num_features: units that the linear model uses; the others have score 0. They are chosen as by the `lime`
            package, whose default is 10: forward selection of up to 6, or the largest coefficients of all units.
            Default: all units.

    Other parameters: see `CoalitionMethod`.
    """

    kernel_width: float = 0.25
    alpha: float = 1.0
    num_features: int | None = None
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
        if self.num_features is not None and self.num_features < 1:
            raise ExpoundError(f"lime needs num_features of at least 1, or none for all units, got {self.num_features}")

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
        gram, moments = weighted @ centered, weighted @ answers
        used = present.any(1)
        if self.num_features is not None and self.num_features < present.shape[2]:
            used = used & self._select_units(gram, moments, used, self.num_features)
        return _solve_ridge(gram, moments, used, self.alpha)

    def _select_units(self, gram: Tensor, moments: Tensor, used: Tensor, count: int) -> Tensor:
        """Return the `count` units of the linear model, selected as by the `lime` package: [B, U]."""
        chosen = torch.zeros_like(used)
        if count > FORWARD_SELECTION:
            strengths = _solve_ridge(gram, moments, used, SELECTION_ALPHA).abs()
            return chosen.scatter(1, strengths.topk(count).indices, True)
        for _ in range(count):
            # Adding a unit to the model raises R² by its squared correlation with the residual.
            variances = gram.diagonal(dim1=1, dim2=2)
            gains = torch.where(~chosen & (variances > TINY), moments[..., 0] ** 2 / variances, -1.0)
            best = gains.argmax(1, keepdim=True)
            chosen = chosen.scatter(1, best, True)
            # The chosen unit is projected out of all others and of the answers.
            column = gram.gather(2, best[:, None].expand(-1, gram.shape[1], 1))
            pivot = column.gather(1, best[..., None]).clamp(min=TINY)
            moments = moments - column * moments.gather(1, best[..., None]) / pivot
            gram = gram - column @ column.transpose(1, 2) / pivot
        return chosen


def _solve_ridge(gram: Tensor, moments: Tensor, used: Tensor, alpha: float) -> Tensor:
    """Return the coefficients of a ridge regression on the used units, 0 for the others: [B, U].

    Raises:
        ExpoundError: the system is singular, which happens only without a penalty.
    """
    pairs = used[:, None] & used[..., None]
    # Unused units get a 1 on the diagonal: the batch stays solvable, their coefficients are 0.
    penalty = torch.where(used, alpha, gram.new_ones(())).diag_embed()
    coefficients, singular = torch.linalg.solve_ex(gram * pairs + penalty, moments * used[..., None])
    if singular.any():
        raise ExpoundError("lime needs an alpha above 0 here: the samples do not tell all units apart")
    solved: Tensor = coefficients[..., 0]
    return solved
