"""Occlusion: how the answer changes when a word is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.explainers.base import OfOutput
from exegete.explainers.units import Granularity, spread, units
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbed import How


@dataclass(frozen=True)
class Occlusion(OfOutput):
    """Drop of the target's probability when a word (or other unit) is taken away (Zeiler and Fergus 2014). Signed.

    Generated text: drop of the log-probability, unless `output` says otherwise.

    `granularity`: `word`, `token`, `sentence` or `source`; a unit's drop is shared equally by its
    tokens. `perturbation`: `mask`, `remove`, `pad` or `zero`.
    """

    granularity: Granularity = "word"
    perturbation: How = "mask"
    card: ClassVar = MethodCard(
        name="occlusion", family="perturbation", signed=True, cost="(words + 1) F", paper="Zeiler and Fergus 2014"
    )

    def passes(self, length: int) -> tuple[float, float]:
        """One a unit and one of the whole, at most: equal inputs are run once."""
        return length + 1.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """p_c(x) − p_c(x without the unit)."""
        unit = units(batch, self.granularity)
        number = torch.arange(-1, max(int(unit.max()), 0) + 1, device=batch.device)
        keep = unit != number[:, None, None]
        keep[0] = True
        value = model.task.value(model.perturbed(batch, keep, self.perturbation), target)
        return spread((value[0] - value[1:]).T, unit)
