"""Conciseness: how few tokens does the attribution point at?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.metrics.base import Metric
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class ImportantTokens(Metric):
    """Share of tokens whose score, scaled to [0, 1] within its example, is above z, averaged over thresholds z.

    After IvRA, appendix D. Lower is more concise. If all scores are equal, every token is as important as the most
    important one, and the value is 1. `thresholds`: the values of z.

    Examples:
        >>> judge("important_tokens?thresholds=0.25,0.75", "good fine film", [2, 1, 0])  # (2/3 + 1/3) / 2
        0.5
    """

    thresholds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    card: ClassVar = MetricCard(
        name="important_tokens", family="conciseness", higher_is_better=False, paper="IvRA, appendix D", bounds=(0, 1),
        equation=r"\frac{1}{|Z|} \sum_{z \in Z} \frac{|\{ i : \hat{s}_i > z \}|}{L}",
        computed="Scores are scaled from 0, the lowest of a text, to 1, the highest. The value is the share of tokens "
        "above z, averaged over z = 0.1, 0.2, … 0.9 (`thresholds`). The model is not asked.",
        read="Lower is more concise. 0.10: a tenth of the text stands out; 1: all tokens have the same score. Normally "
        "distributed scores have about 0.5.",
        use="Explanations should be short.",
        avoid="Do not use it without a metric of faithfulness: one word drawn at random is as concise as possible.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.thresholds or not all(0 <= z < 1 for z in self.thresholds):
            raise ExpoundError(f"expected thresholds from 0 to below 1, got {self.thresholds}")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; the model is not asked."""
        scores = attribution.double()
        low = scores.masked_fill(~batch.content, torch.inf).amin(1, keepdim=True)
        high = scores.masked_fill(~batch.content, -torch.inf).amax(1, keepdim=True)
        # Equal scores would be 0 / 0; a value of 1 puts them above every threshold.
        scaled = torch.where(high > low, (scores - low) / (high - low), 1.0)
        levels = torch.tensor(self.thresholds, dtype=scores.dtype, device=scores.device)
        above = (scaled[..., None] > levels) & batch.content[..., None]
        return {self.name: (above.sum(1).double().mean(1) / batch.content.sum(1)).float()}
