"""Model scores with only some of the words present: the shared part of LIME and of the Shapley methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers.base import OutputExplainer
from exegete.explainers.seeding import example_generators
from exegete.explainers.units import number_units, spread
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod

POSITIONS_PER_CALL = 1 << 22
FEWEST = 4


class Coalitions(NamedTuple):
    """Coalitions of one example's n units: who is `present` [M, n] bool, and what each counts, `weights` [M, ...]."""

    present: NDArray[np.bool_]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class CoalitionMethod(OutputExplainer):
    """The target's probability, explained by asking for it under many sets of present words (or tokens).

    Args:
        n_samples: perturbed inputs an example, at most; with 2^n ≤ n_samples every set of the n units is asked once,
            and nothing is left to chance. Equal inputs are run once.
        granularity: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is shared equally by its
            tokens.
        perturbation: what happens to absent units: `remove`, `mask`, `pad` or `zero`.
        seed: with the example's own content it decides the draws; batching and order change nothing.
    """

    n_samples: int = 500
    granularity: Granularity = "word"
    perturbation: RemovalMethod = "remove"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_samples < FEWEST:
            raise ExegeteError(f"{self.name} needs n_samples of at least {FEWEST}, got {self.n_samples}")

    def passes(self, length: int) -> tuple[float, float]:
        """One a set of units, at most."""
        return float(min(self.n_samples, 2 ** min(length, 60))), 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Draws sets of units, asks the model, and lets the method make scores [B, U] of the answers."""
        unit = number_units(batch, self.granularity)
        counts = (unit.max(1).values + 1).tolist()
        drawn = [
            self._make_coalitions(count, random)
            for count, random in zip(counts, example_generators(batch, self.seed), strict=True)
        ]
        present = _pad_arrays([one.present.astype(np.float64) for one in drawn]).to(batch.device)
        weights = _pad_arrays([one.weights for one in drawn]).to(batch.device)
        values = coalition_values(model, batch, target, present.transpose(0, 1) > 0, unit, self.perturbation)
        return spread(self.solve(present, weights, values.T.double()).to(values.dtype), unit)

    def _make_coalitions(self, count: int, random: np.random.Generator) -> Coalitions:
        if count < 60 and 2**count <= self.n_samples:
            present = all_coalitions(count)
            return Coalitions(present, self.exact_weights(present))
        return self.draw(count, random)

    @abstractmethod
    def exact_weights(self, present: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The weight of each of all 2^n coalitions [2^n, n]: [2^n, ...]."""

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Coalitions:
        """At most `n_samples` coalitions of `count` units, more than can all be asked."""

    @abstractmethod
    def solve(self, present: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """[B, U] from coalitions [B, M, U], weights [B, M, ...] and values [B, M] in float64; filler weighs 0."""


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
    how: RemovalMethod,
    value: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """[M, B] The target's probability with only the `present` [M, B, U] units of each example; `unit` [B, L].

    `value`: another number than the task's own, from answers and target.
    """
    value = value or model.task.score_probabilities
    present = torch.nn.functional.pad(present, (1, 0), value=True)
    index = (unit + 1)[None]
    size = max(1, POSITIONS_PER_CALL // unit.numel())
    with model.cache_perturbed():
        answers = [
            value(model.predict_perturbed(batch, part.gather(2, index.expand(len(part), -1, -1)), how), target)
            for part in present.split(size)
        ]
    return torch.cat(answers)


def _pad_arrays(rows: list[NDArray[np.float64]]) -> Tensor:
    """Arrays of uneven shape in one tensor of the largest shape, filled with zeros; no dimension is empty."""
    shape = np.maximum(np.array([row.shape for row in rows]).max(0), 1)
    grid = torch.zeros(len(rows), *shape.tolist(), dtype=torch.float64)
    for line, row in zip(grid, rows, strict=True):
        line[tuple(slice(size) for size in row.shape)] = torch.from_numpy(row)
    return grid
