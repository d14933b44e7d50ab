"""Top share: how much of an explanation is in few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound import ExpoundError
from expound.metrics import Metric, MetricCard
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class TopShare(Metric):
    """The part of Σ|scores| that the `count` highest |scores| have; NaN where all scores are 0."""

    count: int = 3
    card: ClassVar = MetricCard(name="top_share", family="conciseness", higher_is_better=True, bounds=(0, 1))

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ExpoundError(f"top_share: expected a count of at least 1, got {self.count}")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; the model is not asked."""
        sizes = attribution.double().abs()  # [B, L], zero outside content
        top = sizes.topk(min(self.count, sizes.shape[1]), dim=1).values.sum(1)
        whole = sizes.sum(1)
        return {self.name: torch.where(whole > 0, top / whole, torch.nan).float()}
