"""The interface of all metrics, and the checks of their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.models import Batch, ExplainedModel


class Metric(ABC):
    """A judge of attributions with its parameters; subclasses are frozen dataclasses, registered by `card.name`.

    A metric implements `compute`. Call it through `judge`, which checks the input, finds the target, and answers
    NaN for every example that no metric is defined for: one without content, with a score that is not finite, or whose
    target lies outside the input.
    """

    card: ClassVar[MetricCard]
    compares_examples: ClassVar[bool] = False  # whether an example's value depends on which others are in its batch

    @property
    def name(self) -> str:
        """The id of the metric in the registry."""
        return self.card.name

    @property
    def params(self) -> dict[str, Any]:
        """The metric's parameters by name, as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}

    @abstractmethod
    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """One value an example, [B] float32, under each name; NaN where the metric is undefined.

        Args:
            model: the model whose answers were explained.
            batch: B examples.
            attribution: [B, L], zero outside content.
            target: what was explained, [B] (spans: [B, 2]).
        """

    def evaluate(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[str, Tensor]:
        """Values [B] by name, see `compute`; `target` as in `ExplainedModel.target`, by default the prediction.

        Inside `model.cache_perturbed()`, metrics that ask for the same perturbed inputs run them once between them.

        Raises:
            ExegeteError: the attribution does not fit the batch.
        """
        case = build_metric_input(model, batch, attribution, target)
        with torch.no_grad(), model.cache_perturbed():
            values = self._compute_defined(model, batch, case)
        return {name: case.mask_undefined(value) for name, value in values.items()}

    def _compute_defined(self, model: ExplainedModel, batch: Batch, case: MetricInput) -> dict[str, Tensor]:
        """The values by name; metrics that compare examples never see those that cannot be judged."""
        if not self.compares_examples or case.defined.all():
            return self.compute(model, batch, case.attribution, case.target)
        rows = case.defined.nonzero().flatten()
        if not len(rows):
            return {self.name: case.attribution.new_full(case.defined.shape, torch.nan)}
        found = self.compute(model, batch.select(rows), case.attribution[rows], case.target[rows])
        return {
            name: value.new_full(case.defined.shape, torch.nan).index_copy(0, rows, value)
            for name, value in found.items()
        }

    def evaluate_budgets(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[float, Tensor]:
        """The value [B] at each budget, for metrics that have budgets; arguments and NaN as in `judge`."""
        return {}

    def supports(self, model: ExplainedModel) -> bool:
        """Whether the metric is defined for what the model answers."""
        return True


class MetricInput(NamedTuple):
    """A metric's input: `attribution` [B, L], 0 outside content; `target`; `defined` [B]: whether it can be judged."""

    attribution: Tensor
    target: Tensor
    defined: Tensor

    def mask_undefined(self, values: Tensor) -> Tensor:
        """The values [B] in float32, NaN where the example cannot be judged."""
        return values.float().masked_fill(~self.defined, torch.nan)


def build_metric_input(model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None) -> MetricInput:
    """The attribution and the target in the form that metrics expect; see `Metric.evaluate`."""
    if attribution.shape != batch.content.shape:
        expected, got = list(batch.content.shape), list(attribution.shape)
        raise ExegeteError(f"expected an attribution of shape {expected}, a score for each position, got {got}")
    attribution = attribution.detach().to(batch.device)
    inside = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
    if isinstance(target, Tensor) and target.ndim:
        inside = (target.to(batch.device).reshape(len(target), -1) >= 0).all(1)
        target = target.clamp(min=0)
    target = model.resolve_target(batch, target)
    finite = (attribution.isfinite() | ~batch.content).all(1)
    kept = attribution.masked_fill(~(batch.content & finite[:, None]), 0)
    return MetricInput(kept, target, finite & inside & batch.content.any(1))
