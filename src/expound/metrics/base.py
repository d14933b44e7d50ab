"""The interface of all metrics, and the check of their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.data.registry import check_choices, read_fields
from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel


class Metric(ABC):
    """A metric of attributions with its parameters; subclasses are frozen dataclasses, registered by `card.name`.

    A metric implements `compute`. Callers use `evaluate`, which checks the input, resolves the target, and returns NaN
    for every example that cannot be judged: one without content, with a score that is not finite, or with a target
    outside the input.

    Examples of metrics use `judge` of `expound.testing.counting`: its model's P(positive) is .2, and .3 more for each
    "good", .2 more for each "fine", .1 less for each "bad".
    """

    card: ClassVar[MetricCard]
    compares_examples: ClassVar[bool] = False
    """Whether an example's value depends on the other examples of its batch."""

    def __post_init__(self) -> None:
        """Check that each option is one of the choices of its annotation."""
        check_choices(self)

    @property
    def name(self) -> str:
        """The id of the metric in the registry."""
        return self.card.name

    @property
    def params(self) -> dict[str, Any]:
        """The metric's parameters by name, as plain values."""
        return read_fields(self)

    @abstractmethod
    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example, [B] float32, under each name; NaN if the metric is undefined.

        Args:
            model: the model whose predictions were explained.
            batch: B examples.
            attribution: [B, L], zero outside content.
            target: what was explained, [B] (spans: [B, 2]).
        """

    def evaluate(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[str, Tensor]:
        """Return one value per example, [B] float32 by name; NaN for examples that cannot be judged.

        Inside `model.cache_perturbed()`, perturbed inputs that several metrics ask for are run once.

        Args:
            model: the model whose predictions were explained.
            batch: B examples.
            attribution: scores [B, L].
            target: what was explained, see `ExplainedModel.resolve_target`; default: the prediction.

        Raises:
            ExpoundError: the attribution does not fit the batch.
        """
        inputs = build_metric_input(model, batch, attribution, target)
        with torch.no_grad(), model.cache_perturbed():
            values = self._compute_defined(model, batch, inputs)
        return {name: inputs.mask_undefined(value) for name, value in values.items()}

    def _compute_defined(self, model: ExplainedModel, batch: Batch, inputs: MetricInput) -> dict[str, Tensor]:
        # Values of metrics that compare examples would change if undefined examples took part.
        if not self.compares_examples or inputs.defined.all():
            return self.compute(model, batch, inputs.attribution, inputs.target)
        rows = inputs.defined.nonzero().flatten()
        undefined = inputs.attribution.new_full(inputs.defined.shape, torch.nan)
        if not len(rows):
            return {self.name: undefined}
        values = self.compute(model, batch.select(rows), inputs.attribution[rows], inputs.target[rows])
        return {name: undefined.to(value.dtype).index_copy(0, rows, value) for name, value in values.items()}

    def evaluate_fractions(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[float, Tensor]:
        """Return the value [B] at each fraction, or {} for a metric without fractions; arguments as in `evaluate`."""
        return {}

    def supports(self, model: ExplainedModel) -> bool:
        """Return whether the metric is defined for the model's task."""
        return True


class MetricInput(NamedTuple):
    """The checked input of a metric.

    `attribution` [B, L]: scores, 0 outside content. `target`: the resolved target. `defined` [B]: whether the example
    can be judged.
    """

    attribution: Tensor
    target: Tensor
    defined: Tensor

    def mask_undefined(self, values: Tensor) -> Tensor:
        """Return the values [B] in float32, with NaN for examples that cannot be judged."""
        return values.float().masked_fill(~self.defined, torch.nan)


def build_metric_input(model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None) -> MetricInput:
    """Return the attribution and the target in the form that metrics expect.

    Raises:
        ExpoundError: the attribution has another shape than the batch.
    """
    if attribution.shape != batch.content.shape:
        expected, got = list(batch.content.shape), list(attribution.shape)
        raise ExpoundError(f"expected an attribution of shape {expected}, a score for each position, got {got}")
    attribution = attribution.detach().to(batch.device)
    in_input = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
    if isinstance(target, Tensor) and target.ndim:
        # −1 marks a target that truncation removed. It is clamped to keep indexing valid; its example becomes NaN.
        in_input = (target.to(batch.device).reshape(len(target), -1) >= 0).all(1)
        target = target.clamp(min=0)
    target = model.resolve_target(batch, target)
    finite = (attribution.isfinite() | ~batch.content).all(1)
    attribution = attribution.masked_fill(~(batch.content & finite[:, None]), 0)
    return MetricInput(attribution, target, finite & in_input & batch.content.any(1))
