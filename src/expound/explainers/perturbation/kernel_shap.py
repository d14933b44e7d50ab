"""KernelSHAP: Shapley values as the solution of a weighted regression."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.perturbation.coalitions import CoalitionMethod, Coalitions


@dataclass(frozen=True)
class KernelShap(CoalitionMethod):
    """Shapley values of the target's probability by constrained least squares (Lundberg and Lee 2017). Signed.

    min_φ Σ_z k(z) (v(z) − v(∅) − z·φ)² with Σ φ = v(all) − v(∅), where k(z) = (n − 1) / (C(n, |z|) |z| (n − |z|)). With
    all coalitions these are the exact Shapley values. Otherwise sets are drawn from k in pairs of a set and its
    complement, which reduces the variance (Covert and Lee 2021). The scores always add up to v(all) − v(∅).

    Parameters: see `CoalitionMethod`.

    Examples:
        >>> explain("kernel_shap", "good fine film")  # probabilities add up: the words' parts
        [0.3, 0.2, 0.0]
    """

    card: ClassVar = MethodCard(
        name="kernel_shap", label="KernelSHAP", family="perturbation", signed=True, cost="min(n_samples, 2^words) F",
        paper="Lundberg and Lee 2017", unit="part of the {output}",
        equation=r"\min_\phi \sum_z k(z) (v(z) - v(\emptyset) - z \cdot \phi)^2, \; \sum_i \phi_i = v(1) - "
        r"v(\emptyset)",
        use="Short texts (exact up to about ten words), when scores should be fair among words.",
        avoid="Do not use it with few samples of a long text: the random draws then decide the order of the words.",
    )  # fmt: skip

    def exact_weights(self, present: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the Shapley kernel of each coalition: [2^n]."""
        count = present.shape[1]
        # The kernel is infinite for the empty and the full set: they are constraints of `solve`, with weight 0 here.
        kernel = np.zeros(count + 1)
        for size in range(1, count):
            kernel[size] = (count - 1) / (comb(count, size) * size * (count - size))
        weights: NDArray[np.float64] = kernel[present.sum(1)]
        return weights

    def draw(self, count: int, random: np.random.Generator) -> Coalitions:
        """Return the empty set, the full set, and pairs of a set drawn from the kernel and its complement."""
        pairs = (self.n_samples - 2) // 2
        sizes = np.arange(1, count)
        # The kernel summed over all sets of one size: sizes near the ends are the most likely.
        chance = 1 / (sizes * (count - sizes))
        size = random.choice(sizes, pairs, p=chance / chance.sum())
        # Ranks of random numbers below `size` select a uniform set of this size.
        sets = random.random((pairs, count)).argsort(1).argsort(1) < size[:, None]
        ends = np.array([[False], [True]]).repeat(count, 1)
        return Coalitions(np.concatenate([ends, sets, ~sets]), np.repeat([0.0, 1.0], [2, 2 * pairs]))

    def solve(self, present: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """Return equal shares of v(all) − v(∅), plus the least-squares solution among vectors that add up to 0."""
        empty, full = values[:, 0], values[:, :2][:, -1]
        exists = present.amax(1)
        count = exists.sum(1, keepdim=True).clamp(min=1)
        equal = exists * (full - empty)[:, None] / count
        # Projection onto vectors with sum 0: the constraint is eliminated, and the regression is unconstrained.
        centering = torch.diag_embed(exists) - exists[:, :, None] * exists[:, None, :] / count[..., None]
        design = present @ centering
        residual = values - empty[:, None] - (present @ equal[..., None])[..., 0]
        weighted = (weights[..., None] * design).transpose(1, 2)
        # A pseudoinverse, since the projection makes the system singular (and padding adds zero rows).
        inverse = torch.linalg.pinv(weighted @ design, hermitian=True, rtol=1e-10)
        shares: Tensor = equal + (inverse @ weighted @ residual[..., None])[..., 0]
        return shares
