"""AOPC over units: the mean drop of the target's probability (or a regression's value) over the first 1 … K units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.metrics.faithfulness.unit_order import UnitOrderMetric
from expound.models import ExplainedModel


@dataclass(frozen=True, kw_only=True)
class UnitComprehensiveness(UnitOrderMetric):
    """Mean of p(x) − p(x without the first k units) over k = 1 … K, or over all units if there are fewer.

    `k`: the largest number of units, K. The value is NaN for an example without units.

    Examples:
        >>> judge("unit_comprehensiveness?k=2", "good fine film", [2, 1, 0])  # (.3 + .5) / 2
        0.4
    """

    k: int = 5
    positive_params: ClassVar = ("k",)
    card: ClassVar = MetricCard(
        name="unit_comprehensiveness", label="Comprehensiveness of units",
        family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(-1, 1),
        equation=r"\frac{1}{K} \sum_{k=1}^{K} [p(x) - p(x \setminus \text{first } k)]",
        computed="The mean drop of the probability without the first 1, 2, … K units by decreasing score; K is 5 "
        "(`k`), or the number of units if there are fewer. {p} For generated text, p is the response's probability. "
        "{units} {masked}",
        read="As `aopc_comprehensiveness`: 0.20 means that the probability fell by 20 points on average. {control}",
        use="Units should be counted and not taken as shares: the first sources, sentences or words.",
        avoid="Do not use it on texts of very different lengths: five words are all of one text and a small part of "
        "another.",
    )  # fmt: skip

    def select_output(self, model: ExplainedModel) -> ExplainedModel:
        """Return the model with its probability as output, also for generated text."""
        if model.task.predicts_number:
            return model
        return model.with_output("prob")

    def removal_sizes(self, counts: Tensor) -> Tensor:
        """Return the size of the whole input, then 1 … K units, at most all of them: [1 + K, B]."""
        whole = counts if self.keeps_top else torch.zeros_like(counts)
        return torch.cat([whole[None], self._steps(counts).minimum(counts)])

    def aggregate(self, answers: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
        """Return the mean drop over the steps that the example has units for: [B]."""
        valid = self._steps(counts) <= counts
        return ((answers[0] - answers[1:]) * valid).sum(0) / valid.sum(0)

    def _steps(self, counts: Tensor) -> Tensor:
        return torch.arange(1, self.k + 1, device=counts.device)[:, None]


@dataclass(frozen=True, kw_only=True)
class UnitSufficiency(UnitComprehensiveness):
    """Mean of p(x) − p(the first k units alone) over k = 1 … K, or over all units if there are fewer.

    Examples:
        >>> judge("unit_sufficiency?k=2", "good fine film", [2, 1, 0])  # (.2 + 0) / 2
        0.1
    """

    card: ClassVar = MetricCard(
        name="unit_sufficiency", label="Sufficiency of units",
        family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020", bounds=(-1, 1),
        equation=r"\frac{1}{K} \sum_{k=1}^{K} [p(x) - p(\text{first } k)]",
        computed="The mean drop of the probability with only the first 1, 2, … K units; K is 5 (`k`), or the number of "
        "units if there are fewer. {p} For generated text, p is the response's probability. {units} {masked}",
        read="Lower is better. 0: the first units are enough; 0.30: 30 points are missing on average. {control}",
        use="Together with `unit_comprehensiveness`.",
        avoid="Do not use it on texts of very different lengths: five words are all of one text and a small part of "
        "another.",
    )  # fmt: skip
    keeps_top: ClassVar = True
