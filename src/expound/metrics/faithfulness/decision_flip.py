"""Decision flip: the share of a text that has to be removed until the model predicts another class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.explainers.perturbation.coalitions import coalition_values
from expound.metrics.faithfulness.unit_order import UnitMetric
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class DecisionFlip(UnitMetric):
    """Smallest share of units, by decreasing score, whose removal changes the prediction; 1 if it never changes.

    After Serrano and Smith 2019. The decision is always the model's own prediction, whichever target was explained.

    Examples:
        >>> judge("decision_flip", "good fine film", [2, 1, 0])  # .4 without "good", one of three words
        0.333
    """

    card: ClassVar = MetricCard(
        name="decision_flip", family="faithfulness", higher_is_better=False, paper="Serrano and Smith 2019",
        bounds=(0, 1),
        equation=r"\min \{ t : \arg\max p(x \setminus \text{top}_t) \ne \arg\max p(x) \}",
        computed="Words are masked one by one by decreasing score; the value is the share of masked words when the "
        "model first predicts another class, and 1 if it never does. {units} {masked}",
        read="From 0 to 1, lower is better. 0.10: without a tenth of its words the text gets another prediction. "
        "{control}",
        use="Decisions matter to you, not probabilities.",
        avoid="Do not use it when the model keeps its class whatever is masked: most values are then 1. Do not use it "
        "for regressions and generated text.",
    )  # fmt: skip

    def supports(self, model: ExplainedModel) -> bool:
        """Return whether the model makes decisions, which regressions and language models do not."""
        return model.task.supports("decisions")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`. Raises ExpoundError for an unsupported task."""
        if not self.supports(model):
            raise ExpoundError(f"decision_flip counts changed decisions, and a {model.task.name} makes none")
        order = self.order_units(batch, attribution)
        sizes = torch.arange(order.place.shape[1] + 1, device=batch.device)[:, None]
        decisions = self.predict_subsets(model, batch, ~order.first(sizes))
        changed = decisions != decisions[0]
        if changed.ndim > 2:
            # A span's decision has two parts, start and end; it changes if either does.
            changed = changed.any(-1)
        flipped = changed & (sizes <= order.counts)
        share = flipped.long().argmax(0) / order.counts.clamp(min=1).double()
        return {self.name: share.where(flipped.any(0), 1.0).float()}

    def predict_subsets(self, model: ExplainedModel, batch: Batch, present: Tensor) -> Tensor:
        """Return the prediction [N, B] (spans: [N, B, 2]) with only the `present` [N, B, U] units."""

        def predict(logits: Tensor, _: Tensor) -> Tensor:
            return torch.stack([model.task.predict(version, batch) for version in logits])

        no_target = present.new_zeros(0)
        return coalition_values(model, batch, no_target, present, self.units(batch), self.perturbation, predict)
