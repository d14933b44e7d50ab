"""The answer while units go, or come, one after the other in the order of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.metrics.faithfulness.unit_order import UnitOrderMetric


@dataclass(frozen=True, kw_only=True)
class DeletionAuc(UnitOrderMetric):
    """Area under the target's probability over the share of units that went, by trapezoids: small where it falls soon.

    `steps`: units are counted off in so many steps of nearly equal size; a text of fewer units goes one by one.
    """

    steps: int = 50
    positive_params: ClassVar = ("steps",)
    card: ClassVar = MetricCard(
        name="deletion_auc",
        label="Area under deletion",
        family="faithfulness",
        higher_is_better=False,
        paper="Petsiuk et al. 2018",
        bounds=(0, 1),
    )

    def removal_sizes(self, counts: Tensor) -> Tensor:
        """From none to all."""
        count = counts.clamp(min=1)
        steps = count.clamp(max=self.steps)
        number = torch.arange(int(steps.max()) + 1, device=counts.device)[:, None].minimum(steps)
        return (2 * number * count + steps) // (2 * steps)  # rounded

    def aggregate(self, answers: Tensor, removal_sizes: Tensor, counts: Tensor) -> Tensor:
        """The area."""
        return torch.trapezoid(answers, removal_sizes / counts.clamp(min=1).double(), dim=0)


@dataclass(frozen=True, kw_only=True)
class InsertionAuc(DeletionAuc):
    """The same over the share of units that came: large where the probability rises soon."""

    card: ClassVar = MetricCard(
        name="insertion_auc",
        label="Area under insertion",
        family="faithfulness",
        higher_is_better=True,
        paper="Petsiuk et al. 2018",
        bounds=(0, 1),
    )
    keeps_top: ClassVar = True
