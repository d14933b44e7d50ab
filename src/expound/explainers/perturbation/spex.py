"""SPEX: interactions of pairs of units, exact for few units and sparse for many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.base import OutputExplainer, TokenScores
from expound.explainers.perturbation.coalitions import FEWEST, all_subsets, coalition_values
from expound.explainers.seeding import example_generators
from expound.explainers.units import number_units, spread
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod

NOTHING = 1e-12
FEWEST_FITTED = 64
"""ProxySPEX cross-validates trees with at least 20 samples per leaf on five folds; fewer samples allow no split."""
Floats = NDArray[np.float64]
Sets = NDArray[np.bool_]
Moebius = Mapping[tuple[int, ...], float]
"""The Möbius transform m(S), by the sorted units of S."""


@dataclass(frozen=True)
class Spex(OutputExplainer):
    """Shapley values of units, and Shapley interactions of pairs (Butler et al. 2025, ProxySPEX). Signed.

    Let m be the Möbius transform of the target's probability v over sets of present units: v(S) = Σ over T ⊆ S of m(T).
    A unit's score is Σ over S ∋ i of m(S) / |S|. The interaction of a pair is Σ over S ⊇ {i, j} of m(S) / (|S| − 1),
    which is what both add together beyond what each adds alone (Grabisch and Roubens 1999). If all 2^n sets fit into
    `n_samples`, the values are exact. Otherwise boosted trees are fitted to random sets, and m is computed from their
    largest Fourier coefficients (`shapiq`, from the extra `interactions`).

    Examples:
        >>> explain("spex", "good fine film")  # no interactions: the words' parts
        [0.3, 0.2, 0.0]

    Args:
        n_samples: perturbed inputs per example, at most; equal inputs are run once.
        unit: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is shared equally by its
            tokens, and an interaction by the pairs of tokens.
        perturbation: how absent units are removed: `remove`, `mask`, `pad`, `zero` or `attend`.
        seed: with the example's content it determines the sets; batching and order have no effect.

    Raises:
        ExpoundError: too few samples, or more units than they allow without the extra.
    """

    n_samples: int = 512
    unit: UnitName = "word"
    perturbation: RemovalMethod = "remove"
    seed: int = 0
    card: ClassVar = MethodCard(
        name="spex", family="interactions", signed=True, cost="min(n_samples, 2^words) F", paper="Butler et al. 2025",
        unit="part of the {output}",
        equation=r"s_i = \sum_{S \ni i} m(S) / |S|, \; v(S) = \sum_{T \subseteq S} m(T)",
        use="Use it when words or sources act together, to learn which pairs matter beyond the sum of both.",
        avoid="Do not use it when you can afford only few passes: if the 2^n sets are more than `n_samples`, values "
        "are estimated by fitted trees (extra `interactions`).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_samples < FEWEST:
            raise ExpoundError(f"spex needs n_samples of at least {FEWEST}, got {self.n_samples}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: at most one per set of units."""
        return float(min(self.n_samples, 2 ** min(length, 60))), 0.0

    def cost(self, length: int) -> float:
        """Return half of the passes: half of the units are removed on average."""
        return self.passes(length)[0] / 2

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> TokenScores:
        """Return Shapley values as scores, and the interactions of positions as `pairs`, example by example."""
        unit = number_units(batch, self.unit)
        counts = (unit.max(1).values + 1).tolist()
        scores = torch.zeros(len(batch), max(1, *counts), dtype=torch.float64)
        pairs = torch.zeros(*scores.shape, scores.shape[1], dtype=torch.float64)
        for row, (count, random) in enumerate(zip(counts, example_generators(batch, self.seed), strict=True)):
            one = slice(row, row + 1)
            values = partial(self._values, model, batch.select([row]), target[one], unit[one])
            if count < 60 and 2**count <= self.n_samples:
                transform = moebius_transform(values(all_subsets(count)))
            else:
                transform = fit_proxy(values, count, self.n_samples, int(random.integers(2**31)))
            single, pair = shapley_values(transform, count)
            scores[row, :count], pairs[row, :count, :count] = torch.from_numpy(single), torch.from_numpy(pair)
        scores, pairs = scores.to(batch.device, model.dtype), pairs.to(batch.device, model.dtype)
        return TokenScores(spread(scores, unit), pairs=_spread_pairs(pairs, unit))

    def _values(self, model: ExplainedModel, batch: Batch, target: Tensor, unit: Tensor, sets: Sets) -> Floats:
        present = torch.from_numpy(sets)[:, None].to(batch.device)
        answers = coalition_values(model, batch, target, present, unit, self.perturbation)
        values: Floats = answers[:, 0].double().cpu().numpy()
        return values


def moebius_transform(values: Floats) -> Moebius:
    """Return the Möbius transform of the values [2^n] of all sets, ordered as in `all_subsets`."""
    transform, count = values.copy(), len(values).bit_length() - 1
    # One subtraction per unit and set (n · 2^n in all), as in the fast Walsh-Hadamard transform.
    for bit in range(count):
        halves = transform.reshape(-1, 2, 1 << bit)
        halves[:, 1] -= halves[:, 0]
    sets = all_subsets(count)
    return {tuple(np.flatnonzero(members).tolist()): float(m) for members, m in zip(sets, transform, strict=True)}


def fit_proxy(values: Callable[[Sets], Floats], count: int, samples: int, seed: int) -> Moebius:
    """Return a transform of degree 2 with the Shapley values and pairwise interactions that ProxySPEX estimates.

    Args:
        values: returns the value of each set [M, n].
        count: number of units, n.
        samples: number of sets to evaluate.
        seed: random seed of ProxySPEX.

    Raises:
        ExpoundError: too few samples, or `shapiq` is not installed.
    """
    if samples < FEWEST_FITTED:
        raise ExpoundError(f"spex needs n_samples of at least {FEWEST_FITTED} for {count} units, got {samples}")
    try:
        from shapiq import ProxySPEX

        proxy = ProxySPEX(n=count, index="SII", max_order=2, random_state=seed)
    except ImportError as error:
        message = f"{count} units have more sets than n_samples={samples}: pip install 'expound[interactions]'"
        raise ExpoundError(message) from error

    def game(sets: Sets) -> Floats:
        answers = values(np.asarray(sets, dtype=np.bool_))
        # Boosted trees cannot be fitted to a constant: ProxySPEX fails inside its libraries.
        if np.ptp(answers) < NOTHING:
            raise _ConstantGameError
        return answers

    try:
        estimate = proxy.approximate(samples, game)
    except _ConstantGameError:
        return {}
    known = {tuple(units): float(estimate.values[place]) for units, place in estimate.interaction_lookup.items()}
    transform: dict[tuple[int, ...], float] = {units: value for units, value in known.items() if len(units) == 2}
    for unit in range(count):
        # The Shapley value of unit i is m(i) + ½ Σ_j m(i, j): solve for m(i).
        shared = sum(value for units, value in known.items() if len(units) == 2 and unit in units)
        transform[(unit,)] = known.get((unit,), 0.0) - shared / 2
    return transform


class _ConstantGameError(Exception):
    """Raised to stop the fit if all sets have the same value."""


def shapley_values(transform: Moebius, count: int) -> tuple[Floats, Floats]:
    """Return Shapley values [n] and symmetric pairwise interactions [n, n], with a diagonal of 0."""
    single, pair = np.zeros(count), np.zeros((count, count))
    for units, value in transform.items():
        places = list(units)
        if places:
            single[places] += value / len(places)
        if len(places) > 1:
            pair[np.ix_(places, places)] += value / (len(places) - 1)
    np.fill_diagonal(pair, 0.0)
    return single, pair


def _spread_pairs(pairs: Tensor, unit: Tensor) -> Tensor:
    """Return interactions of positions [B, L, L]: units' interactions [B, U, U], shared equally by pairs of tokens."""
    inside, index = unit >= 0, unit.clamp(min=0)
    size = torch.zeros_like(pairs[:, 0]).scatter_add_(1, index, inside.to(pairs))
    shared = pairs / (size[:, :, None] * size[:, None]).clamp(min=1)
    rows = shared.gather(1, index[:, :, None].expand(-1, -1, shared.shape[2]))
    positions = rows.gather(2, index[:, None].expand(-1, index.shape[1], -1))
    return positions * (inside[:, :, None] & inside[:, None])
