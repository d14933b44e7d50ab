"""Words or tokens in the order in which an attribution would take them away, and what the model answers on the way."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError, unknown
from exegete.explainers.perturbation.coalitions import coalition_values
from exegete.explainers.units import number_units
from exegete.metrics.base import Metric
from exegete.metrics.ranking import ranks
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod


class UnitOrder(NamedTuple):
    """Units of B examples by falling score, equal scores in the order of the text.

    `scores` [B, U] float64: sums over a unit's positions. `place` [B, U]: each unit's place from 0, units that do not
    exist last. `counts` [B]: how many exist.
    """

    scores: Tensor
    place: Tensor
    counts: Tensor

    def first(self, removal_sizes: Tensor) -> Tensor:
        """[N, B, U] Which units are among the first `removal_sizes`, [N, B] or [N, 1]."""
        return self.place < removal_sizes[..., None]


@dataclass(frozen=True, kw_only=True)
class UnitMetric(Metric):
    """A metric that takes units away and asks the model again.

    `level`: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is the sum of its tokens'. `how`: what
    happens to units that are taken away: `remove`, `mask`, `pad` or `zero`. `max_units`: a text of more units is cut
    into so many stretches of nearly equal length, which then are the units; None: never. `counts`: fields of at
    least 1.
    """

    level: Granularity = "word"
    how: RemovalMethod = "mask"
    max_units: int | None = None
    positive_params: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.level not in get_args(Granularity):
            raise unknown("level", self.level, get_args(Granularity))
        if self.how not in get_args(RemovalMethod):
            raise unknown("perturbation", self.how, get_args(RemovalMethod))
        if self.max_units is not None and self.max_units < 1:
            raise ExegeteError(f"{self.name} needs max_units of at least 1, got {self.max_units}")
        check_positive(self.name, **{name: getattr(self, name) for name in self.positive_params})

    def units(self, batch: Batch) -> Tensor:
        """[B, L] The number of each position's unit, -1 where nothing can be taken away."""
        unit = number_units(replace(batch, content=batch.removable), self.level)
        if self.max_units is None:
            return unit
        count = unit.amax(1, keepdim=True) + 1
        joined = unit * self.max_units // count.clamp(min=1)
        return torch.where((unit >= 0) & (count > self.max_units), joined, unit)

    def order_units(self, batch: Batch, attribution: Tensor) -> UnitOrder:
        """The units with their scores, by falling score."""
        unit = self.units(batch)
        count = unit.amax(1) + 1
        width = max(1, int(count.max()))
        scores = torch.zeros(len(unit), width, dtype=torch.float64, device=unit.device)
        scores.scatter_add_(1, unit.clamp(min=0), attribution.double() * (unit >= 0))
        exists = torch.arange(width, device=unit.device) < count[:, None]
        return UnitOrder(scores, ranks(scores, exists), count)

    def probability(self, model: ExplainedModel, batch: Batch, target: Tensor, present: Tensor) -> Tensor:
        """[N, B] The target's probability with the `present` [N, B, U] units, in float64.

        Of a regression the value, of generated text the log-probability: bounds on cards do not hold there.
        """
        return coalition_values(model, batch, target, present, self.units(batch), self.how).double()


@dataclass(frozen=True, kw_only=True)
class UnitOrderMetric(UnitMetric):
    """A metric of the answers while units are removed, or with `keeps_top` added, in the order of their scores."""

    keeps_top: ClassVar[bool] = False

    @abstractmethod
    def removal_sizes(self, counts: Tensor) -> Tensor:
        """[N, B] RemovalMethod many units have gone or come, at every answer; there are `counts` [B]."""

    @abstractmethod
    def aggregate(self, answers: Tensor, removal_sizes: Tensor, counts: Tensor) -> Tensor:
        """[B] The number, from answers [N, B]."""

    def select_output(self, model: ExplainedModel) -> ExplainedModel:
        """The model whose value is asked for."""
        return model

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`."""
        order_units = self.order_units(batch, attribution)
        removal_sizes = self.removal_sizes(order_units.counts)
        first = order_units.first(removal_sizes)
        answers = self.probability(self.select_output(model), batch, target, first if self.keeps_top else ~first)
        return {self.name: self.aggregate(answers, removal_sizes, order_units.counts).float()}


def check_positive(name: str, **values: int) -> None:
    """Raises ExegeteError for a value below 1."""
    for parameter, value in values.items():
        if value < 1:
            raise ExegeteError(f"{name} needs {parameter} of at least 1, got {value}")
