"""Metrics of ablations: do the scores predict the model's answer when units of the input are missing?

Both metrics measure log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.explainers.perturbation.context_cite import batch_ablation_masks
from expound.metrics.faithfulness.unit_order import UnitMetric, UnitOrderMetric
from expound.models import Batch, ExplainedModel
from expound.models.rank_correlation import compute_spearman, merge_close

LOWEST = -104.0
"""Replaces log 0: below the logarithm of the smallest positive float32, 1.4e-45."""
TIE = 1e-6
"""Sums of scores, and answers, that are closer than this share of the largest one are equal."""
Ablation = Literal["random", "leave_one_out"]
RANDOM: Ablation
LEAVE_ONE_OUT: Ablation
RANDOM, LEAVE_ONE_OUT = get_args(Ablation)


@dataclass(frozen=True, kw_only=True)
class Lds(UnitMetric):
    """Linear datamodeling score: Spearman's ρ between answers on sets of units and the sums of the sets' scores.

    Examples:
        >>> judge("lds", "good fine film", [3, 2, 0])  # the sums order all sets as the probabilities do
        1.0

    Args:
        ablation: `random` sets, or `leave_one_out`, all units but one: then ρ between scores and the drops without each
            unit.
        n_samples: number of random sets, the same for every method and text.
        keep_probability: probability that a unit stays in a random set.
        seed: determines the random sets.
    """

    ablation: Ablation = RANDOM
    n_samples: int = 32
    keep_probability: float = 0.5
    # ContextCite's masks are drawn by seeds 0, 1, 2 …; from 1000 on, sets differ from those it was fitted to.
    seed: int = 1000
    positive_params: ClassVar = ("n_samples",)
    card: ClassVar = MetricCard(
        name="lds", label="LDS", family="faithfulness", higher_is_better=True, paper="Cohen-Wang et al. 2024",
        bounds=(-1, 1),
        equation=r"\rho_{\text{Spearman}} \left( f(x_S), \sum_{i \in S} s_i \right)",
        computed="Linear datamodeling score: the rank correlation, over 32 random sets S of units (`n_samples`; each "
        "unit stays with probability ½, `keep_probability`), between the log-probability f of the explained answer "
        "with only S and the sum of the scores in S. {units} {masked}",
        read="From −1 to 1. 1: sums of scores order all sets as the model does; 0: no relation, as `random` has on "
        "average.",
        use="Citations of sources, and units of generated text: scores should predict what the model says when sources "
        "are missing.",
        avoid="Do not use it with two or three units, which have only a few different sets, or with unsigned methods, "
        "which cannot show that a unit is evidence against the answer.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep_probability < 1:
            raise ExpoundError(f"lds needs a keep_probability between 0 and 1, got {self.keep_probability}")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; NaN if all answers or all sums are equal."""
        order = self.order_units(batch, attribution)
        sets = self.draw_sets(order.counts)
        valid_sets = None
        if self.ablation == LEAVE_ONE_OUT:
            # Examples with fewer units have fewer sets; the others repeat the whole input and would distort ρ.
            valid_sets = torch.arange(len(sets), device=sets.device) < order.counts[:, None]
        answers = self.evaluate_sets(model, batch, target, sets)
        return {self.name: compute_lds(order.scores, sets, answers, valid_sets).float()}

    def draw_sets(self, counts: Tensor) -> Tensor:
        """Return the sets of present units [N, B, U] for examples with `counts` [B] units."""
        if self.ablation == RANDOM:
            return batch_ablation_masks(self.n_samples, counts, self.keep_probability, self.seed)
        place = torch.arange(max(1, int(counts.max())), device=counts.device)
        return (place < counts[:, None]) & (place != place[:, None, None])

    def evaluate_sets(self, model: ExplainedModel, batch: Batch, target: Tensor, sets: Tensor) -> Tensor:
        """Return the target's log-probability [N, B] on each of the sets [N, B, U]."""
        return replace_infinite(self.probability(with_log_output(model), batch, target, sets))


@dataclass(frozen=True, kw_only=True)
class TopkDrop(UnitOrderMetric):
    """Drop of the target's log-probability (or a regression's value) without the k units with the highest scores.

    `k`: number of units to remove; all units if there are fewer.

    Examples:
        >>> judge("topk_drop?k=1", "good fine film", [2, 1, 0])  # ln .7 − ln .4
        0.56
    """

    k: int = 3
    positive_params: ClassVar = ("k",)
    card: ClassVar = MetricCard(
        name="topk_drop", label="Top-k drop", family="faithfulness", higher_is_better=True,
        paper="Cohen-Wang et al. 2024",
        equation=r"\log p(x) - \log p(x \setminus \text{top}_k)",
        computed="The drop of the natural logarithm of the explained answer's probability without the three units with "
        "the highest scores (`k`), or without all if there are fewer. {units} {masked}",
        read="Higher is better. 0.69: the probability halved; 2.3: a tenth of it is left. {control}",
        use="Does the answer of a chat need the sources that are cited?",
        avoid="Do not use it when `k` is not much smaller than the number of units: everything is then removed for "
        "every method.",
    )  # fmt: skip

    def select_output(self, model: ExplainedModel) -> ExplainedModel:
        """Return the model with its log-probability as output."""
        return with_log_output(model)

    def removal_sizes(self, counts: Tensor) -> Tensor:
        """Return 0 and k: [2, 1]."""
        return torch.tensor([[0], [self.k]], device=counts.device)

    def aggregate(self, answers: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
        """Return the drop from the whole input to the one without the top k: [B]."""
        finite = replace_infinite(answers)
        return finite[0] - finite[1]


def with_log_output(model: ExplainedModel) -> ExplainedModel:
    """Return the model with the target's log-probability as output; a regression is returned unchanged."""
    if model.task.predicts_number:
        return model
    return model.with_output("log_prob")


def replace_infinite(answers: Tensor) -> Tensor:
    """Return the answers with −inf replaced by the finite `LOWEST`."""
    return answers.masked_fill(answers.isneginf(), LOWEST)


def compute_lds(scores: Tensor, sets: Tensor, answers: Tensor, valid_sets: Tensor | None = None) -> Tensor:
    """Return Spearman's ρ over N sets [B], from scores [B, U], sets of units [N, B, U] and answers [N, B].

    `valid_sets` [B, N]: the sets that count for each example; default: all.
    """
    # Equal numbers differ by rounding, which must not decide their order.
    predicted = merge_close((sets * scores).sum(-1).T, TIE)
    if valid_sets is None:
        valid_sets = torch.ones_like(predicted, dtype=torch.bool)
    return compute_spearman(predicted, merge_close(answers.T, TIE), valid_sets)
