"""Do the scores foretell what the model answers when units of the input are missing?

Both metrics take the answer on the log scale; units are present or not, as `how` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError, unknown
from exegete.explainers.perturbation.context_cite import numbered_sets
from exegete.metrics.faithfulness.unit_order import AlongOrder, ByUnits
from exegete.models import Batch, ExplainedModel
from exegete.models.rank_correlation import compute_spearman

LOWEST = -104.0
Sets = Literal["random", "leave_one_out"]
RANDOM: Sets
LEAVE_ONE_OUT: Sets
RANDOM, LEAVE_ONE_OUT = get_args(Sets)


@dataclass(frozen=True, kw_only=True)
class Lds(ByUnits):
    """Linear datamodelling score: Spearman's ρ between answers on sets of units and their scores' sums.

    Args:
        sets: `random` ones, or `leave_one_out`, all units but one: then ρ of scores and the falls without each unit.
        n_masks: how many random sets, the same for every method and text.
        keep: the probability that a unit stays in a random set.
        seed: decides the random sets.
    """

    sets: Sets = RANDOM
    n_masks: int = 32
    keep: float = 0.5
    seed: int = 1000
    counts: ClassVar = ("n_masks",)
    card: ClassVar = MetricCard(
        name="lds",
        label="LDS",
        family="faithfulness",
        higher_is_better=True,
        paper="Cohen-Wang et al. 2024",
        bounds=(-1, 1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep < 1:
            raise ExegeteError(f"lds needs keep between 0 and 1, got {self.keep}")
        if self.sets not in get_args(Sets):
            raise unknown("sets", self.sets, get_args(Sets))

    def per_example(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """See `Metric`; NaN where all answers or all sums are equal."""
        ordered = self.ordered(batch, attribution)
        there = self.present(ordered.counts)
        known = torch.arange(len(there), device=there.device) < ordered.counts[:, None]
        looked_at = known if self.sets == LEAVE_ONE_OUT else torch.ones_like(known)
        return {self.name: lds(ordered.scores, there, self.answers(model, batch, target, there), looked_at).float()}

    def present(self, counts: Tensor) -> Tensor:
        """[N, B, U] The sets, of examples that have `counts` [B] units each; without one that is not there: all."""
        if self.sets == RANDOM:
            return numbered_sets(self.n_masks, counts, self.keep, self.seed)
        place = torch.arange(max(1, int(counts.max())), device=counts.device)
        return (place < counts[:, None]) & (place != place[:, None, None])

    def answers(self, model: ExplainedModel, batch: Batch, target: Tensor, present: Tensor) -> Tensor:
        """[N, B] The target's log-probability on each of the sets."""
        return finite(self.probability(on_the_log_scale(model), batch, target, present))


@dataclass(frozen=True, kw_only=True)
class TopkDrop(AlongOrder):
    """Fall of the target's log-probability (a regression's value) without the k highest units, or without all.

    `k`: how many units go.
    """

    k: int = 3
    counts: ClassVar = ("k",)
    card: ClassVar = MetricCard(
        name="topk_drop",
        label="Top-k drop",
        family="faithfulness",
        higher_is_better=True,
        paper="Cohen-Wang et al. 2024",
    )

    def asked(self, model: ExplainedModel) -> ExplainedModel:
        """The model's log-probability."""
        return on_the_log_scale(model)

    def sizes(self, counts: Tensor) -> Tensor:
        """None, and k."""
        return torch.tensor([[0], [self.k]], device=counts.device)

    def total(self, answers: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
        """The fall."""
        known = finite(answers)
        return known[0] - known[1]


def on_the_log_scale(model: ExplainedModel) -> ExplainedModel:
    """The model whose value is the target's log-probability; a regression as it is."""
    return model if model.task.name == "regression" else model.with_output("log_prob")


def finite(answers: Tensor) -> Tensor:
    """The answers, none below the logarithm of the smallest number in single precision."""
    return answers.masked_fill(answers.isneginf(), LOWEST)


def lds(scores: Tensor, present: Tensor, answers: Tensor, looked_at: Tensor | None = None) -> Tensor:
    """[B] Spearman's ρ over N sets, from scores [B, U], sets of units [N, B, U] and answers [N, B].

    `looked_at` [B, N]: of each example only these sets.
    """
    foretold = (present * scores).sum(-1).T
    every = torch.ones_like(foretold, dtype=torch.bool)
    return compute_spearman(foretold, answers.T, every if looked_at is None else looked_at)
