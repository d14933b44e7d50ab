"""Infidelity: the error with which the scores of removed units add up to the drop of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.explainers.seeding import draw_numbers
from expound.metrics.faithfulness.unit_order import UnitMetric
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class Infidelity(UnitMetric):
    """Mean over random sets S of units of (β · Σ scores of S − (p(x) − p(x without S)))² (Yeh et al. 2019).

    Each unit is in S with probability ½. `n_samples`: sets for each example. `normalize`: choose β by least squares,
    Σ(score · drop) / Σ(score²), so that the scale of a method's scores has no effect; otherwise β is 1. `seed`: with
    the example's content it determines the sets, which are the same for all methods.

    Examples:
        >>> judge("infidelity", "good fine film", [3, 2, 0])  # proportional to the drops .3, .2 and 0
        0.0
    """

    n_samples: int = 64
    normalize: bool = True
    seed: int = 0
    positive_params: ClassVar = ("n_samples",)
    card: ClassVar = MetricCard(
        name="infidelity", family="faithfulness", higher_is_better=False, paper="Yeh et al. 2019", bounds=(0, None),
        equation=r"\mathbb{E}_S \left( \beta \sum_{i \in S} s_i - [p(x) - p(x \setminus S)] \right)^2",
        computed="Over 64 random sets S of words (`n_samples`; each word is in S with probability ½), the mean squared "
        "error with which the sum of the scores in S predicts the drop of the probability without S. Scores are first "
        "multiplied by the β that fits best (`normalize`), so that their scale does not matter. {p} {units} {masked}",
        read="Lower is better. 0: sums of scores predict every drop; its square root is in points of probability: 0.04 "
        "is an error of 20 points. {control}",
        use="The sizes of the scores should mean something, not only their order.",
        avoid="Do not use it for unsigned methods: their sums cannot predict that the probability rises.",
    )  # fmt: skip

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; defined for every example."""
        order = self.order_units(batch, attribution)
        removed = draw_numbers(batch, order.counts, self.n_samples, self.seed) < 0.5
        whole_first = torch.cat([torch.ones_like(removed[:1]), ~removed])
        answers = self.probability(model, batch, target, whole_first)
        return {self.name: infidelity(order.scores, removed, answers[0] - answers[1:], self.normalize).float()}


def infidelity(scores: Tensor, removed: Tensor, drops: Tensor, normalize: bool = True) -> Tensor:
    """Return the infidelity [B] from scores [B, U], removed sets [N, B, U] and the drops [N, B] that they cause."""
    sums = (removed * scores).sum(-1)
    beta = torch.ones_like(sums[0])
    if normalize:
        power = sums.square().sum(0)
        # All scores 0: every β gives the same error, so the division is only kept finite.
        beta = (sums * drops).sum(0) / power.where(power > 0, 1.0)
    return (beta * sums - drops).square().mean(0)
