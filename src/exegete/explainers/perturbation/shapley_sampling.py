"""Shapley values from random orders of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers.perturbation.coalitions import CoalitionMethod, Coalitions


@dataclass(frozen=True)
class ShapleySampling(CoalitionMethod):
    """Mean rise of the target's probability when a unit joins those before it in an order (Castro et al. 2009). Signed.

    Exact with all coalitions; else over as many random orders as `n_samples` allows, at least one, every second one the
    reverse of the one before it. Scores of the units always add up to v(all) − v(∅).

    Parameters: see `CoalitionMethod`; `n_samples` counts perturbed inputs, of which an order takes n − 1.
    """

    card: ClassVar = MethodCard(
        name="shapley_sampling", family="perturbation", signed=True, cost="min(n_samples, 2^words) F",
        paper="Castro et al. 2009", unit="part of the {output}",
        equation=r"\phi_i = \mathbb{E}_\pi [ v(\pi_{<i} \cup i) - v(\pi_{<i}) ]",
        use="An unbiased estimate of Shapley values when the linear system of `kernel_shap` is ill-conditioned.",
        avoid="Do not use it when cost matters: one random order of the words takes as many passes as the text has "
        "words.",
    )  # fmt: skip

    def exact_weights(self, present: NDArray[np.bool_]) -> NDArray[np.float64]:
        """[2^n, n] φ_i = Σ_z v(z) (z_i (|z| − 1)! (n − |z|)! − (1 − z_i) |z|! (n − |z| − 1)!) / n!."""
        count = present.shape[1]
        size = present.sum(1)
        joined = np.array([0.0, *(1 / (count * comb(count - 1, s - 1)) for s in range(1, count + 1))])[size]
        missing = np.array([*(1 / (count * comb(count - 1, s)) for s in range(count)), 0.0])[size]
        weights: NDArray[np.float64] = np.where(present, joined[:, None], -missing[:, None])
        return weights

    def draw(self, count: int, random: np.random.Generator) -> Coalitions:
        """All beginnings of each order; a unit's score is the value of the one it completes less the one before."""
        orders = max(1, (self.n_samples - 2) // (count - 1))
        rank = random.random((-(-orders // 2), count)).argsort(1)
        rank = np.stack([rank, count - 1 - rank], 1).reshape(-1, 1, count)[:orders]
        arrived = np.arange(count + 1)[:, None]
        share = ((rank == arrived - 1).astype(np.float64) - (rank == arrived)) / orders
        return Coalitions((rank < arrived).reshape(-1, count), share.reshape(-1, count))

    def solve(self, present: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """The scores as sums of weighted coalition values: Σ_z share_i(z) v(z)."""
        return (weights * values[..., None]).sum(1)
