"""Model outputs with only some of the units present: the shared part of LIME and the Shapley methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.base import OutputExplainer
from expound.explainers.seeding import example_generators
from expound.explainers.units import number_units, spread
from expound.models import Batch, ExplainedModel
from expound.models.batch import pack
from expound.models.perturbation.run import RemovalMethod, run_perturbed

POSITIONS_PER_CALL = 1 << 22
"""Positions of keep-masks that are built at a time: 4 MiB of booleans."""
FEWEST = 4


class Coalitions(NamedTuple):
    """Coalitions of one example's n units: `present` [M, n] bool, and their `weights` [M, ...]."""

    present: NDArray[np.bool_]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class CoalitionMethod(OutputExplainer):
    """Base of the methods that explain the target's probability from its values on many sets of present units.

    Args:
        n_samples: perturbed inputs per example, at most; if 2^n ≤ n_samples, every set of the n units is used once,
            without randomness. Equal inputs are run once.
        unit: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is shared equally by its
            tokens.
        perturbation: how absent units are removed: `remove`, `mask`, `pad`, `zero` or `attend`.
        seed: with the example's content it determines the draws; batching and order have no effect.
    """

    n_samples: int = 500
    unit: UnitName = "word"
    perturbation: RemovalMethod = "remove"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_samples < FEWEST:
            raise ExpoundError(f"{self.name} needs n_samples of at least {FEWEST}, got {self.n_samples}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of forward and backward passes: one per set of units, at most."""
        # The exponent is capped: 2^length overflows a float for long texts.
        return float(min(self.n_samples, 2 ** min(length, 60))), 0.0

    def cost(self, length: int) -> float:
        """Return half of the passes: half of the units are removed on average."""
        return self.passes(length)[0] / 2

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return scores [B, L] that the method derives from the model's predictions on sets of units."""
        unit = number_units(batch, self.unit)
        counts = (unit.max(1).values + 1).tolist()
        random = example_generators(batch, self.seed)
        coalitions = [self._make_coalitions(count, own) for count, own in zip(counts, random, strict=True)]
        present = _pad_arrays([each.present.astype(np.float64) for each in coalitions]).to(batch.device)
        weights = _pad_arrays([each.weights for each in coalitions]).to(batch.device)
        values = coalition_values(model, batch, target, present.transpose(0, 1) > 0, unit, self.perturbation)
        # float64: the linear systems are ill-conditioned with many units.
        return spread(self.solve(present, weights, values.T.double()).to(values.dtype), unit)

    def _make_coalitions(self, count: int, random: np.random.Generator) -> Coalitions:
        if count < 60 and 2**count <= self.n_samples:
            present = all_coalitions(count)
            return Coalitions(present, self.exact_weights(present))
        return self.draw(count, random)

    @abstractmethod
    def exact_weights(self, present: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the weight [2^n, ...] of each of all coalitions [2^n, n]."""

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Coalitions:
        """Return at most `n_samples` random coalitions of `count` units."""

    @abstractmethod
    def solve(self, present: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """Return scores [B, U] from coalitions [B, M, U], weights [B, M, ...] and values [B, M] in float64.

        Padding has weight 0.
        """


def all_coalitions(count: int) -> NDArray[np.bool_]:
    """Return every set of units once [2^count, count]: first the empty set, then the full set, then the rest."""
    subsets = all_subsets(count)
    subsets[1:] = np.roll(subsets[1:], 1, axis=0)
    return subsets


def all_subsets(count: int) -> NDArray[np.bool_]:
    """Return every set of units [2^count, count]; set s contains unit i if bit i of s is set."""
    return (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(np.bool_)


def coalition_values(
    model: ExplainedModel,
    batch: Batch,
    target: Tensor,
    present: Tensor,
    unit: Tensor,
    perturbation: RemovalMethod,
    value: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the target's probability with only the present units of each example: [M, B].

    Args:
        model: the model that is asked.
        batch: B examples.
        target: what is explained.
        present: [M, B, U] the present units of each set.
        unit: [B, L] the unit of each position, −1 for positions that always stay.
        perturbation: how absent units are removed.
        value: a function of logits and target, if another output than the task's own is explained.
    """
    value = value or model.task.score_removal
    # Unit −1 becomes column 0, which is always present.
    present = torch.nn.functional.pad(present, (1, 0), value=True)
    index = (unit + 1)[None]
    values = []
    with model.cache_perturbed():
        for part in pack([unit.numel()] * len(present), POSITIONS_PER_CALL):
            own = present[part]
            keep = own.gather(2, index.expand(len(own), -1, -1))
            values.append(value(run_perturbed(model, batch, keep, perturbation, model.perturbation_cache), target))
    return torch.cat(values)


def _pad_arrays(arrays: list[NDArray[np.float64]]) -> Tensor:
    """Stack arrays of different shapes in one tensor of the largest shape, padded with zeros."""
    # An example without content has no units; a dimension of 1 keeps reductions over it valid.
    shape = np.maximum(np.array([array.shape for array in arrays]).max(0), 1)
    grid = torch.zeros(len(arrays), *shape.tolist(), dtype=torch.float64)
    for row, array in zip(grid, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = torch.from_numpy(array)
    return grid
