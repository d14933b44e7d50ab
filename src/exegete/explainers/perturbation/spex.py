"""Which units act together: interactions of pairs, exact for few units, sparse for many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers.base import Explanation, OutputExplainer, TargetSelector
from exegete.explainers.perturbation.coalitions import FEWEST, coalition_values
from exegete.explainers.seeding import example_generators
from exegete.explainers.units import number_units, spread
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod

NOTHING = 1e-12
FEWEST_FITTED = 64  # what leaves of 20 samples can be split on in each of five folds
Floats = NDArray[np.float64]
Sets = NDArray[np.bool_]
Moebius = Mapping[tuple[int, ...], float]
"""m(S) by the units of S, in order."""


@dataclass(frozen=True)
class Spex(OutputExplainer):
    """Shapley values of units, and Shapley interactions of pairs (Butler et al. 2025, ProxySPEX). Signed.

    With m the Möbius transform of the target's probability v over sets of present units, v(S) = Σ over T ⊆ S of m(T), a
    unit's score is Σ over S ∋ i of m(S) / |S|, and a pair's interaction Σ over S ⊇ {i, j} of m(S) / (|S| − 1): what
    both add together beyond what each adds alone (Grabisch and Roubens 1999). Where all 2^n sets fit into `n_samples`
    all are asked and nothing is estimated; else boosted trees are fitted to random sets, and m is that of their largest
    Fourier coefficients (`shapiq`, from the extra `interactions`).

    Args:
        n_samples: perturbed inputs an example, at most; equal ones are run once.
        granularity: `word`, `token`, `sentence`, `paragraph` or `source`; a score is shared equally by a unit's
            tokens, and a pair's by the pairs of theirs.
        perturbation: what happens to absent units: `remove`, `mask`, `pad` or `zero`.
        seed: with the example's own content it decides the sets; batching and order change nothing.

    Raises:
        ExegeteError: too few samples, or more units than they allow without the extra.
    """

    n_samples: int = 512
    granularity: Granularity = "word"
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
        if self.n_samples < FEWEST:
            raise ExegeteError(f"spex needs n_samples of at least {FEWEST}, got {self.n_samples}")

    def passes(self, length: int) -> tuple[float, float]:
        """One a set of units, at most."""
        return float(min(self.n_samples, 2 ** min(length, 60))), 0.0

    def compute(self, model: ExplainedModel, batch: Batch, select_target: TargetSelector) -> Explanation:
        """Asks for the answer of sets, example by example; `pairs` are those of positions."""
        target = select_target(None)
        unit = number_units(batch, self.granularity)
        counts = (unit.max(1).values + 1).tolist()
        scores = torch.zeros(len(batch), max(1, *counts), dtype=torch.float64)
        pairs = torch.zeros(*scores.shape, scores.shape[1], dtype=torch.float64)
        for row, (count, random) in enumerate(zip(counts, example_generators(batch, self.seed), strict=True)):
            own = slice(row, row + 1)
            values = partial(self._values, model, batch.select([row]), target[own], unit[own])
            if count < 60 and 2**count <= self.n_samples:
                found = moebius_transform(values(subsets(count)))
            else:
                found = fit_proxy(values, count, self.n_samples, int(random.integers(2**31)))
            alone, together = shapley_values(found, count)
            scores[row, :count], pairs[row, :count, :count] = torch.from_numpy(alone), torch.from_numpy(together)
        scores, pairs = (each.to(batch.device, model.dtype) for each in (scores, pairs))
        return Explanation(spread(scores, unit), pairs=_spread_pairs(pairs, unit))

    def _values(self, model: ExplainedModel, batch: Batch, target: Tensor, unit: Tensor, sets: Sets) -> Floats:
        present = torch.from_numpy(sets)[:, None].to(batch.device)
        answers = coalition_values(model, batch, target, present, unit, self.perturbation)
        values: Floats = answers[:, 0].double().cpu().numpy()
        return values


def subsets(count: int) -> Sets:
    """[2^count, count] Every set; set s holds unit i where bit i of s is set."""
    return (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(np.bool_)


def moebius_transform(values: Floats) -> Moebius:
    """The transform of values [2^n] of all sets as `subsets` numbers them."""
    found, count = values.copy(), len(values).bit_length() - 1
    for bit in range(count):
        halves = found.reshape(-1, 2, 1 << bit)
        halves[:, 1] -= halves[:, 0]
    return {tuple(np.flatnonzero(own).tolist()): float(m) for own, m in zip(subsets(count), found, strict=True)}


def fit_proxy(values: Callable[[Sets], Floats], count: int, samples: int, seed: int) -> Moebius:
    """A transform of the second degree with the Shapley values and interactions of pairs that ProxySPEX finds."""
    if samples < FEWEST_FITTED:
        raise ExegeteError(f"spex needs n_samples of at least {FEWEST_FITTED} for {count} units, got {samples}")
    try:
        from shapiq import ProxySPEX

        proxy = ProxySPEX(n=count, index="SII", max_order=2, random_state=seed)
    except ImportError as error:
        message = f"{count} units have more sets than n_samples={samples}: pip install 'exegete[interactions]'"
        raise ExegeteError(message) from error

    def game(sets: Sets) -> Floats:
        found = values(np.asarray(sets, dtype=np.bool_))
        if np.ptp(found) < NOTHING:
            raise _ConstantGameError
        return found

    try:
        found = proxy.approximate(samples, game)
    except _ConstantGameError:
        return {}
    known = {tuple(own): float(found.values[place]) for own, place in found.interaction_lookup.items()}
    degree: dict[tuple[int, ...], float] = {own: value for own, value in known.items() if len(own) == 2}
    for unit in range(count):
        shared = sum(value for own, value in known.items() if len(own) == 2 and unit in own)
        degree[(unit,)] = known.get((unit,), 0.0) - shared / 2
    return degree


class _ConstantGameError(Exception):
    """All sets have the same value, which no model can be fitted to."""


def shapley_values(found: Moebius, count: int) -> tuple[Floats, Floats]:
    """Shapley values [n] and symmetric interactions of pairs [n, n] of a Möbius transform; zero on the diagonal."""
    alone, together = np.zeros(count), np.zeros((count, count))
    for own, value in found.items():
        places = list(own)
        if places:
            alone[places] += value / len(places)
        if len(places) > 1:
            together[np.ix_(places, places)] += value / (len(places) - 1)
    np.fill_diagonal(together, 0.0)
    return alone, together


def _spread_pairs(pairs: Tensor, unit: Tensor) -> Tensor:
    """[B, L, L] from units' [B, U, U], shared equally by the pairs of positions; 0 outside units."""
    inside, index = unit >= 0, unit.clamp(min=0)
    size = torch.zeros_like(pairs[:, 0]).scatter_add_(1, index, inside.to(pairs))
    shared = pairs / (size[:, :, None] * size[:, None]).clamp(min=1)
    rows = shared.gather(1, index[:, :, None].expand(-1, -1, shared.shape[2]))
    found = rows.gather(2, index[:, None].expand(-1, index.shape[1], -1))
    return found * (inside[:, :, None] & inside[:, None])
