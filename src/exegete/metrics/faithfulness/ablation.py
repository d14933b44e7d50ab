"""Do the scores foretell what the model answers when units of the input are missing?

Both metrics take the answer on the log scale; units are present or not, as `how` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.metrics.consistency import spearman
from exegete.metrics.faithfulness.unit_order import ByUnits, at_least_one
from exegete.models import Batch, ExplainedModel

LOWEST = -104.0  # the logarithm of the smallest number in single precision


@dataclass(frozen=True, kw_only=True)
class Ablation(ByUnits):
    """A metric of what is left of the answer without some units."""

    def answers(self, model: ExplainedModel, batch: Batch, target: Tensor, present: Tensor) -> Tensor:
        """[N, B] The target's log-probability (a regression's value) with the `present` [N, B, U] units."""
        asked = model if model.task.name == "regression" else model.with_output("log_prob")
        values = self.probability(asked, batch, target, present)
        return values.masked_fill(values.isneginf(), LOWEST)


@dataclass(frozen=True, kw_only=True)
class Lds(Ablation):
    """Linear datamodelling score: Spearman's ρ between answers on random sets of units and their scores' sums.

    Args:
        n_masks: random sets, by their number alone, so that they are the same for every method and text.
        keep: each unit's chance to stay.
        seed: the number of the first set.
    """

    n_masks: int = 32
    keep: float = 0.5
    seed: int = 1000
    card: ClassVar = MetricCard(
        name="lds", family="faithfulness", higher_is_better=True, paper="Cohen-Wang et al. 2024", bounds=(-1, 1)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.name, n_masks=self.n_masks)
        if not 0 < self.keep < 1:
            raise ExegeteError(f"lds needs keep between 0 and 1, got {self.keep}")

    def per_example(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """See `Metric`; NaN where all answers or all sums are equal."""
        ordered = self.ordered(batch, attribution)
        present = np.zeros((self.n_masks, *ordered.scores.shape), np.bool_)
        for row, count in enumerate(ordered.counts.tolist()):
            present[:, row, :count] = numbered_masks(self.n_masks, count, self.keep, self.seed)
        there = torch.from_numpy(present).to(batch.device)
        return {self.name: lds(ordered.scores, there, self.answers(model, batch, target, there)).float()}


@dataclass(frozen=True, kw_only=True)
class TopkDrop(Ablation):
    """Fall of the target's log-probability (a regression's value) without the `k` highest units, or without all."""

    k: int = 3
    card: ClassVar = MetricCard(
        name="topk_drop", family="faithfulness", higher_is_better=True, paper="Cohen-Wang et al. 2024"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.name, k=self.k)

    def per_example(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """See `Metric`; defined for every example."""
        ordered = self.ordered(batch, attribution)
        sizes = torch.tensor([[0], [self.k]], device=batch.device)
        whole, without = self.answers(model, batch, target, ~ordered.first(sizes))
        return {self.name: (whole - without).float()}


def lds(scores: Tensor, present: Tensor, answers: Tensor) -> Tensor:
    """[B] Spearman's ρ over N sets, from scores [B, U], sets of units [N, B, U] and answers [N, B]."""
    foretold = (present * scores).sum(-1).T
    return spearman(foretold, answers.T, torch.ones_like(foretold, dtype=torch.bool))


def numbered_masks(
    number: int, count: int, keep: float = 0.5, seed: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[number, count] bool: mask i keeps each of `count` units with chance `keep`, drawn by `seed` + i alone."""
    draws = [np.random.RandomState(seed + i).choice([False, True], count, p=[1 - keep, keep]) for i in range(number)]
    return np.array(draws, dtype=np.bool_).reshape(number, count)
