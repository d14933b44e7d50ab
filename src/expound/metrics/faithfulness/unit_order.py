"""Shared parts of the metrics that remove units (words, tokens, sentences, sources) in the order of their scores."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.perturbation.coalitions import coalition_values
from expound.explainers.units import number_units
from expound.metrics.base import Metric
from expound.metrics.ranking import ranks
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod


class UnitOrder(NamedTuple):
    """Units of B examples ranked by decreasing score; ties keep the order of the text.

    `scores` [B, U] float64: sums over a unit's positions. `place` [B, U]: rank of each unit from 0, padding units last.
    `counts` [B]: number of units of each example.
    """

    scores: Tensor
    place: Tensor
    counts: Tensor

    def first(self, sizes: Tensor) -> Tensor:
        """Return a mask [N, B, U] of the units among the first `sizes` [N, B] or [N, 1]."""
        return self.place < sizes[..., None]


@dataclass(frozen=True, kw_only=True)
class UnitMetric(Metric):
    """A metric that removes units and asks the model again.

    `unit`: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is the sum of its tokens' scores.
    `perturbation`: how units are removed: `remove`, `mask`, `pad`, `zero` or `attend`. `max_units`: a text with more
    units is divided into this number of segments of nearly equal length, which replace the units; None: no limit.
    """

    unit: UnitName = "word"
    perturbation: RemovalMethod = "mask"
    max_units: int | None = None
    positive_params: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that must be at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_units is not None and self.max_units < 1:
            raise ExpoundError(f"{self.name} needs max_units of at least 1, got {self.max_units}")
        check_positive(self.name, **{name: getattr(self, name) for name in self.positive_params})

    def units(self, batch: Batch) -> Tensor:
        """Return the unit number of each position, −1 for positions that cannot be removed: [B, L]."""
        unit = number_units(replace(batch, content=batch.removable), self.unit)
        if self.max_units is None:
            return unit
        count = unit.amax(1, keepdim=True) + 1
        # Integer arithmetic keeps segments contiguous and their sizes within one unit of each other.
        segment = unit * self.max_units // count.clamp(min=1)
        return torch.where((unit >= 0) & (count > self.max_units), segment, unit)

    def order_units(self, batch: Batch, attribution: Tensor) -> UnitOrder:
        """Return the units of each example with their scores and ranks."""
        unit = self.units(batch)
        count = unit.amax(1) + 1
        width = max(1, int(count.max()))
        # float64: in lower precision the order of summation could decide ties between units.
        scores = torch.zeros(len(unit), width, dtype=torch.float64, device=unit.device)
        scores.scatter_add_(1, unit.clamp(min=0), attribution.double() * (unit >= 0))
        exists = torch.arange(width, device=unit.device) < count[:, None]
        return UnitOrder(scores, ranks(scores, exists), count)

    def probability(self, model: ExplainedModel, batch: Batch, target: Tensor, present: Tensor) -> Tensor:
        """Return the target's probability with only the `present` [N, B, U] units, in float64: [N, B].

        For regressions it is the value and for generated text the log-probability; the bounds on cards do not hold
        there.
        """
        return coalition_values(model, batch, target, present, self.units(batch), self.perturbation).double()


@dataclass(frozen=True, kw_only=True)
class UnitOrderMetric(UnitMetric):
    """A metric of the predictions while units are removed, or with `keeps_top` added, in the order of their scores."""

    keeps_top: ClassVar[bool] = False

    @abstractmethod
    def removal_sizes(self, counts: Tensor) -> Tensor:
        """Return how many units are removed (or added) for each of N predictions: [N, B], given the `counts` [B]."""

    @abstractmethod
    def aggregate(self, answers: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
        """Return one value per example [B] from the predictions [N, B] at the removal sizes [N, B]."""

    def select_output(self, model: ExplainedModel) -> ExplainedModel:
        """Return the model with the output (probability, log-probability) that the metric measures."""
        return model

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`."""
        order = self.order_units(batch, attribution)
        sizes = self.removal_sizes(order.counts)
        first = order.first(sizes)
        answers = self.probability(self.select_output(model), batch, target, first if self.keeps_top else ~first)
        return {self.name: self.aggregate(answers, sizes, order.counts).float()}


def check_positive(name: str, **values: int) -> None:
    """Raise ExpoundError if a value is below 1; `name` is the metric's name for the message."""
    for parameter, value in values.items():
        if value < 1:
            raise ExpoundError(f"{name} needs {parameter} of at least 1, got {value}")
