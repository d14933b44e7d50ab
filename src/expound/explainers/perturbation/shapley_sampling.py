"""Shapley values from random orders of the units."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.perturbation.coalitions import CoalitionMethod, Coalitions


@dataclass(frozen=True)
class ShapleySampling(CoalitionMethod):
    """Mean increase of the target's probability when a unit is added in a random order (Castro et al. 2009). Signed.

    Exact with all coalitions. Otherwise the mean is over as many random orders as `n_samples` allows, at least one;
    every second order is the reverse of the one before it. The scores always add up to v(all) − v(∅).

    Parameters: see `CoalitionMethod`; `n_samples` counts perturbed inputs, and an order takes n − 1 of them.

    Examples:
        >>> explain("shapley_sampling", "good fine film")  # the same in every order
        [0.3, 0.2, 0.0]
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
        """Return the weights [2^n, n] of the values v(z) in the Shapley values.

        φ_i = Σ_z v(z) (z_i (|z| − 1)! (n − |z|)! − (1 − z_i) |z|! (n − |z| − 1)!) / n!.
        """
        count = present.shape[1]
        size = present.sum(1)
        # (s − 1)! (n − s)! / n! = 1 / (n · C(n − 1, s − 1)): binomials do not overflow as factorials do.
        coefficient = np.array([1 / (count * comb(count - 1, s)) for s in range(count)])
        if_present = np.array([0.0, *coefficient])[size]
        if_absent = np.array([*coefficient, 0.0])[size]
        weights: NDArray[np.float64] = np.where(present, if_present[:, None], -if_absent[:, None])
        return weights

    def draw(self, count: int, random: np.random.Generator) -> Coalitions:
        """Return all beginnings of random orders; a unit's weight is 1 in the set that it completes, −1 one before."""
        orders = max(1, (self.n_samples - 2) // (count - 1))
        rank = random.random((-(-orders // 2), count)).argsort(1)
        # Reversed orders reduce the variance: a unit that came early in one comes late in the other.
        rank = np.stack([rank, count - 1 - rank], 1).reshape(-1, 1, count)[:orders]
        added = np.arange(count + 1)[:, None]
        share = ((rank == added - 1).astype(np.float64) - (rank == added)) / orders
        return Coalitions((rank < added).reshape(-1, count), share.reshape(-1, count))

    def solve(self, present: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """Return the scores as weighted sums of the coalitions' values, Σ_z weight_i(z) v(z): [B, U]."""
        return (weights * values[..., None]).sum(1)
