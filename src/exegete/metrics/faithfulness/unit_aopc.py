"""Does the answer need the units that come first, and are they enough?

AOPC over units: the mean over k = 1 … K of the fall of the target's probability (a regression's value).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.metrics.faithfulness.unit_order import UnitOrderMetric
from exegete.models import ExplainedModel


@dataclass(frozen=True, kw_only=True)
class UnitComprehensiveness(UnitOrderMetric):
    """Mean of p(x) − p(x without the first k units) over k = 1 … K, or to all of fewer units; NaN without units.

    `k`: K.
    """

    k: int = 5
    positive_params: ClassVar = ("k",)
    card: ClassVar = MetricCard(
        name="unit_comprehensiveness", label="Comprehensiveness of units",
        family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip

    def select_output(self, model: ExplainedModel) -> ExplainedModel:
        """The model's probability, of generated text too."""
        return model if model.task.name == "regression" else model.with_output("prob")

    def removal_sizes(self, counts: Tensor) -> Tensor:
        """All units, then k of them."""
        every = counts if self.keeps_top else torch.zeros_like(counts)
        return torch.cat([every[None], self._steps(counts).minimum(counts)])

    def aggregate(self, answers: Tensor, removal_sizes: Tensor, counts: Tensor) -> Tensor:
        """The mean fall."""
        counted = self._steps(counts) <= counts
        return ((answers[0] - answers[1:]) * counted).sum(0) / counted.sum(0)

    def _steps(self, counts: Tensor) -> Tensor:
        return torch.arange(1, self.k + 1, device=counts.device)[:, None]


@dataclass(frozen=True, kw_only=True)
class UnitSufficiency(UnitComprehensiveness):
    """Mean of p(x) − p(the first k units alone) over k = 1 … K, or to all of fewer units."""

    card: ClassVar = MetricCard(
        name="unit_sufficiency", label="Sufficiency of units",
        family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip
    keeps_top: ClassVar = True
