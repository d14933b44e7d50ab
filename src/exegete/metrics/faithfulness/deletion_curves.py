"""The answer while units go, or come, one after the other in the order of their scores."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.metrics.faithfulness.unit_order import ByUnits, Ordered, at_least_one
from exegete.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class CurveArea(ByUnits):
    """Area under the target's probability over the share of units that went or came, by trapezoids.

    `steps`: units are counted off in so many steps of nearly equal size; a text of fewer units goes one by one.
    """

    steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.name, steps=self.steps)

    @abstractmethod
    def present(self, ordered: Ordered, sizes: Tensor) -> Tensor:
        """[N, B, U] Which units are there at each size."""

    def per_example(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """See `Metric`; defined for every example."""
        ordered = self.ordered(batch, attribution)
        count = ordered.counts.clamp(min=1)
        steps = count.clamp(max=self.steps)
        number = torch.arange(int(steps.max()) + 1, device=batch.device)[:, None].minimum(steps)
        sizes = (2 * number * count + steps) // (2 * steps)  # rounded
        answers = self.probability(model, batch, target, self.present(ordered, sizes))
        return {self.name: torch.trapezoid(answers, sizes / count.double(), dim=0).float()}


@dataclass(frozen=True, kw_only=True)
class DeletionAuc(CurveArea):
    """The sooner the probability falls when the highest go first, the smaller."""

    card: ClassVar = MetricCard(
        name="deletion_auc", family="faithfulness", higher_is_better=False, paper="Petsiuk et al. 2018", bounds=(0, 1)
    )

    def present(self, ordered: Ordered, sizes: Tensor) -> Tensor:
        """All but the first."""
        return ~ordered.first(sizes)


@dataclass(frozen=True, kw_only=True)
class InsertionAuc(CurveArea):
    """The sooner the probability rises when the highest come first, the larger."""

    card: ClassVar = MetricCard(
        name="insertion_auc", family="faithfulness", higher_is_better=True, paper="Petsiuk et al. 2018", bounds=(0, 1)
    )

    def present(self, ordered: Ordered, sizes: Tensor) -> Tensor:
        """The first alone."""
        return ordered.first(sizes)
