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
from exegete.explainers.perturbation.context_cite import batch_ablation_masks
from exegete.metrics.faithfulness.unit_order import UnitMetric, UnitOrderMetric
from exegete.models import Batch, ExplainedModel
from exegete.models.rank_correlation import compute_spearman

LOWEST = -104.0
Sets = Literal["random", "leave_one_out"]
RANDOM: Sets
LEAVE_ONE_OUT: Sets
RANDOM, LEAVE_ONE_OUT = get_args(Sets)


@dataclass(frozen=True, kw_only=True)
class Lds(UnitMetric):
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
    positive_params: ClassVar = ("n_masks",)
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

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; NaN where all answers or all sums are equal."""
        ordered = self.order_units(batch, attribution)
        there = self.draw_sets(ordered.counts)
        known = torch.arange(len(there), device=there.device) < ordered.counts[:, None]
        valid_sets = known if self.sets == LEAVE_ONE_OUT else torch.ones_like(known)
        answers = self.evaluate_sets(model, batch, target, there)
        return {self.name: compute_lds(ordered.scores, there, answers, valid_sets).float()}

    def draw_sets(self, counts: Tensor) -> Tensor:
        """[N, B, U] The sets, of examples that have `counts` [B] units each; without one that is not there: all."""
        if self.sets == RANDOM:
            return batch_ablation_masks(self.n_masks, counts, self.keep, self.seed)
        place = torch.arange(max(1, int(counts.max())), device=counts.device)
        return (place < counts[:, None]) & (place != place[:, None, None])

    def evaluate_sets(self, model: ExplainedModel, batch: Batch, target: Tensor, draw_sets: Tensor) -> Tensor:
        """[N, B] The target's log-probability on each of the sets."""
        return replace_infinite(self.probability(with_log_output(model), batch, target, draw_sets))


@dataclass(frozen=True, kw_only=True)
class TopkDrop(UnitOrderMetric):
    """Fall of the target's log-probability (a regression's value) without the k highest units, or without all.

    `k`: how many units go.
    """

    k: int = 3
    positive_params: ClassVar = ("k",)
    card: ClassVar = MetricCard(
        name="topk_drop",
        label="Top-k drop",
        family="faithfulness",
        higher_is_better=True,
        paper="Cohen-Wang et al. 2024",
    )

    def select_output(self, model: ExplainedModel) -> ExplainedModel:
        """The model's log-probability."""
        return with_log_output(model)

    def removal_sizes(self, counts: Tensor) -> Tensor:
        """None, and k."""
        return torch.tensor([[0], [self.k]], device=counts.device)

    def aggregate(self, answers: Tensor, removal_sizes: Tensor, counts: Tensor) -> Tensor:
        """The fall."""
        known = replace_infinite(answers)
        return known[0] - known[1]


def with_log_output(model: ExplainedModel) -> ExplainedModel:
    """The model whose value is the target's log-probability; a regression as it is."""
    return model if model.task.name == "regression" else model.with_output("log_prob")


def replace_infinite(answers: Tensor) -> Tensor:
    """The answers, none below the logarithm of the smallest number in single precision."""
    return answers.masked_fill(answers.isneginf(), LOWEST)


def compute_lds(scores: Tensor, draw_sets: Tensor, answers: Tensor, valid_sets: Tensor | None = None) -> Tensor:
    """[B] Spearman's ρ over N sets, from scores [B, U], sets of units [N, B, U] and answers [N, B].

    `valid_sets` [B, N]: of each example only these sets.
    """
    foretold = (draw_sets * scores).sum(-1).T
    every = torch.ones_like(foretold, dtype=torch.bool)
    return compute_spearman(foretold, answers.T, every if valid_sets is None else valid_sets)
