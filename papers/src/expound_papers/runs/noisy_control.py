"""A control for explainers that are optimized for a metric: the best of noisy copies of an ordinary explanation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers import Explainer
from expound.explainers.attributive_masking.refinement import evaluate_maps, select_best
from expound.explainers.seeding import example_generators
from expound.metrics import metric
from expound.models import Batch, ExplainedModel


@dataclass(frozen=True)
class BestOfNoisy(Explainer):
    """The explanation, among one and its copies with Gaussian noise, that has the best value of a metric.

    Args:
        of: the explainer.
        best_by: the metric's spec.
        maps: number of explanations to choose from, including the original.
        spread: standard deviation of the noise, in standard deviations of the explanation's own scores.
        seed: random seed of the noise.
    """

    of: Explainer
    best_by: str
    maps: int = 11
    spread: float = 0.5
    seed: int = 0
    card: ClassVar = MethodCard(name="best_of_noisy", family="control", signed=True, cost="")

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with those of the explainer under `of`."""
        own = {"best_by": self.best_by, "maps": self.maps, "spread": self.spread, "seed": self.seed}
        return {"of": {"method": self.of.name, **self.of.params}, **own}

    @cached_property
    def needs_gradient(self) -> bool:
        """Whether the method that is disturbed runs backward passes."""
        return self.of.needs_gradient

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return the best map of each example, [B, L]."""
        scores, content = self.of.attribute(model, batch, target), batch.content
        noise = np.zeros((self.maps - 1, *scores.shape), np.float32)
        deviation = torch.empty_like(scores[:, :1])
        for row, random in enumerate(example_generators(batch, self.seed)):
            own = content[row]
            noise[:, row, own.cpu().numpy()] = random.standard_normal((self.maps - 1, int(own.sum())))
            deviation[row] = scores[row, own].std(correction=0)
        copies = scores + self.spread * deviation * torch.from_numpy(noise).to(scores)
        maps, judge = torch.cat([scores[None], copies]), metric(self.best_by)
        return select_best(maps, evaluate_maps(judge, model, batch, maps, target), judge.card.higher_is_better)
