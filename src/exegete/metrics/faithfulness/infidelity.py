"""Do the scores of what is taken away add up to what the answer loses?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.explainers.seeding import example_generators
from exegete.metrics.faithfulness.unit_order import UnitMetric
from exegete.models import Batch, ExplainedModel


@dataclass(frozen=True, kw_only=True)
class Infidelity(UnitMetric):
    """Mean over random sets S of units of (β · Σ scores of S − (p(x) − p(x without S)))² (Yeh et al. 2019).

    Each unit is in S with probability ½. `n_samples`: sets for each example. `normalise`: β is the number that makes
    the mean least in the least-squares sense, Σ(score · drop) / Σ(score²), so that a method's scale is of no effect;
    else 1. `seed`: with the example's own content it decides the sets, which are the same for all methods.
    """

    n_samples: int = 64
    normalise: bool = True
    seed: int = 0
    positive_params: ClassVar = ("n_samples",)
    card: ClassVar = MetricCard(
        name="infidelity", family="faithfulness", higher_is_better=False, paper="Yeh et al. 2019", bounds=(0, None)
    )

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; defined for every example."""
        ordered = self.order_units(batch, attribution)
        removed = draw_unit_sets(batch, ordered.counts, self.n_samples, self.seed)
        answers = self.probability(model, batch, target, torch.cat([torch.ones_like(removed[:1]), ~removed]))
        return {self.name: infidelity(ordered.scores, removed, answers[0] - answers[1:], self.normalise).float()}


def infidelity(scores: Tensor, removed: Tensor, drops: Tensor, normalise: bool = True) -> Tensor:
    """[B] From scores [B, U], sets [N, B, U] and what taking them away cost [N, B]."""
    said = (removed * scores).sum(-1)
    power = said.square().sum(0)
    factor = (said * drops).sum(0) / power.where(power > 0, 1.0) if normalise else torch.ones_like(power)
    return (factor * said - drops).square().mean(0)


def draw_unit_sets(batch: Batch, counts: Tensor, samples: int, seed: int, chance: float = 0.5) -> Tensor:
    """[N, B, U] Random sets of each example's units, each unit in with the same chance; by `seed` and the example."""
    removed = np.zeros((samples, len(batch), max(1, int(counts.max()))), np.bool_)
    for row, (count, random) in enumerate(zip(counts.tolist(), example_generators(batch, seed), strict=True)):
        removed[:, row, :count] = random.random((samples, count)) < chance
    return torch.from_numpy(removed).to(batch.device)
