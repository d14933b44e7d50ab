"""Does the answer need the units that come first, and are they enough?

AOPC over units: the mean over k = 1 … K of the fall of the target's probability (a regression's value).
"""

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
class UnitAopc(ByUnits):
    """The mean fall of the probability for the K units that come first; K is `k`, or all of fewer units."""

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.name, k=self.k)

    @abstractmethod
    def present(self, ordered: Ordered, sizes: Tensor) -> Tensor:
        """[K, B, U] Which units are there at each size."""

    def per_example(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """See `Metric`; NaN for an example without units."""
        ordered = self.ordered(batch, attribution)
        sizes = torch.arange(1, self.k + 1, device=batch.device)[:, None].minimum(ordered.counts)
        present = self.present(ordered, sizes)
        asked = model if model.task.name == "regression" else model.with_output("prob")
        answers = self.probability(asked, batch, target, torch.cat([torch.ones_like(present[:1]), present]))
        counted = torch.arange(self.k, device=batch.device)[:, None] < ordered.counts
        falls = (answers[0] - answers[1:]) * counted
        return {self.name: (falls.sum(0) / counted.sum(0)).float()}


@dataclass(frozen=True, kw_only=True)
class UnitComprehensiveness(UnitAopc):
    """Of p(x) − p(x without the first k)."""

    card: ClassVar = MetricCard(
        name="unit_comprehensiveness", family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip

    def present(self, ordered: Ordered, sizes: Tensor) -> Tensor:
        """All but the first."""
        return ~ordered.first(sizes)


@dataclass(frozen=True, kw_only=True)
class UnitSufficiency(UnitAopc):
    """Of p(x) − p(the first k alone)."""

    card: ClassVar = MetricCard(
        name="unit_sufficiency", family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip

    def present(self, ordered: Ordered, sizes: Tensor) -> Tensor:
        """The first alone."""
        return ordered.first(sizes)
