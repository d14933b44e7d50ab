"""How much of a text has to go before the model decides otherwise?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.explainers.perturbation.coalitions import POSITIONS_PER_CALL
from exegete.metrics.faithfulness.unit_order import ByUnits
from exegete.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class DecisionFlip(ByUnits):
    """The smallest share of units, the highest first, without which the prediction is another one; 1 if none is.

    After Serrano and Smith 2019; the decision is the model's own, whatever was explained.
    """

    card: ClassVar = MetricCard(
        name="decision_flip", family="faithfulness", higher_is_better=False, paper="Serrano and Smith 2019",
        bounds=(0, 1),
    )  # fmt: skip

    def applies(self, model: ExplainedModel) -> bool:
        """Not to regressions and generated text."""
        return model.task.name not in ("regression", "generation")

    def per_example(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """See `Metric`; where there are no decisions, an ExegeteError."""
        if not self.applies(model):
            raise ExegeteError(f"decision_flip counts changed decisions, and a {model.task.name} makes none")
        ordered = self.ordered(batch, attribution)
        sizes = torch.arange(ordered.place.shape[1] + 1, device=batch.device)[:, None]
        decisions = self.decisions(model, batch, ~ordered.first(sizes))
        other = decisions != decisions[0]
        flipped = (other if other.ndim == 2 else other.any(-1)) & (sizes <= ordered.counts)
        first = flipped.long().argmax(0) / ordered.counts.clamp(min=1).double()
        return {self.name: first.where(flipped.any(0), 1.0).float()}

    def decisions(self, model: ExplainedModel, batch: Batch, present: Tensor) -> Tensor:
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
