"""How much of a text has to go before the model decides otherwise?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.explainers.perturbation.coalitions import POSITIONS_PER_CALL
from exegete.metrics.faithfulness.unit_order import UnitMetric
from exegete.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class DecisionFlip(UnitMetric):
    """The smallest share of units, the highest first, without which the prediction is another one; 1 if none is.

    After Serrano and Smith 2019; the decision is the model's own, whatever was explained.
    """

    card: ClassVar = MetricCard(
        name="decision_flip", family="faithfulness", higher_is_better=False, paper="Serrano and Smith 2019",
        bounds=(0, 1),
    )  # fmt: skip

    def supports(self, model: ExplainedModel) -> bool:
        """Not to regressions and generated text."""
        return model.task.name not in ("regression", "generation")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; where there are no decisions, an ExegeteError."""
        if not self.supports(model):
            raise ExegeteError(f"decision_flip counts changed decisions, and a {model.task.name} makes none")
        ordered = self.order_units(batch, attribution)
        sizes = torch.arange(ordered.place.shape[1] + 1, device=batch.device)[:, None]
        predict_subsets = self.predict_subsets(model, batch, ~ordered.first(sizes))
        other = predict_subsets != predict_subsets[0]
        flipped = (other if other.ndim == 2 else other.any(-1)) & (sizes <= ordered.counts)
        first = flipped.long().argmax(0) / ordered.counts.clamp(min=1).double()
        return {self.name: first.where(flipped.any(0), 1.0).float()}

    def predict_subsets(self, model: ExplainedModel, batch: Batch, present: Tensor) -> Tensor:
        """[N, B] (spans: [N, B, 2]) What the model predicts with the `present` [N, B, U] units."""
        index = (self.units(batch) + 1)[None]
        there = torch.nn.functional.pad(present, (1, 0), value=True)
        lowest = torch.finfo(torch.float32).tiny
        found = [
            model.task.predict(answers.clamp(min=lowest).log(), batch)
            for part in there.split(max(1, POSITIONS_PER_CALL // index.numel()))
            for answers in model.predict_perturbed(batch, part.gather(2, index.expand(len(part), -1, -1)), self.how)
        ]
        return torch.stack(found)
