"""IvRA's consistency metric itself as a loss, with soft ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models.rank_correlation import center_ranks, compute_mean_ranks, order_content_first
from expound.objectives.base import TrainingStep
from expound.objectives.consistency import PairCriterion

MIN_VARIATION = 1e-9


@dataclass(frozen=True)
class RankConsistencyLoss(PairCriterion):
    """1 − ρ of IvRA's consistency metric (eq. 12 and 18), with soft ranks; mean over the pairs of a batch.

    The printed loss (eq. 13, `ConsistencyLoss`) is lowest if all explanations are equal, on one special token for
    instance; a rank correlation is not. For a pair of examples, ρ is the Spearman correlation over positions l of
    a_l = ‖H_i[l] − H_j[l]‖₂, from hidden states averaged over layers and detached, and b_l = |r_i[l] − r_j[l]|.
    Positions are counted from the first content position, as far as both examples have content. a has ordinary ranks,
    b soft ones, ½ + Σ_m σ((b_l − b_m) / T), which become the metric's mean ranks for T → 0. A pair has loss 0 if all a
    or all b are equal.

    Args:
        explainer: see `Criterion`, as `weight` and `lr_multiplier`.
        temperature: T, in standard deviations of b.
        pairs: the largest number of pairs of a training step; of a larger batch as many pairs are drawn.
    """

    temperature: float = 0.1
    pairs: int = 256
    name: ClassVar[str] = "rank_consistency"
    equation: ClassVar[str] = r"1 - \rho_{\text{soft}} \left( \lVert H_i - H_j \rVert, |r_i - r_j| \right)"
    use: ClassVar[str] = "Explanations should be consistent by IvRA's own metric."
    avoid: ClassVar[str] = "Batches of one, or texts of one token; there is nothing to rank."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0 or self.pairs < 1:
            raise ExpoundError(
                f"expected a temperature above 0 and at least 1 pair, got {self.temperature} and {self.pairs}"
            )

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the pairs, a scalar; 0 for a batch of one example."""
        scores, order = self.explain_prediction(step), order_content_first(step.batch.content)
        content = step.batch.content.gather(1, order)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        states = torch.stack([layer.detach().to(dtype) for layer in step.outputs.hidden_states]).mean(0)
        states = states.gather(1, order[..., None].expand_as(states))
        first, second = self._draw_pairs(step, len(scores))
        if not len(first):
            # a 0 with a graph: backward() fails on a constant
            return scores.sum() * 0
        scores = scores.gather(1, order)
        score_differences = (scores[first] - scores[second]).abs()
        state_distances = (states[first] - states[second]).norm(dim=-1)
        both_content = content[first] & content[second]
        return soft_spearman_loss(state_distances, score_differences, both_content, self.temperature)

    def _draw_pairs(self, step: TrainingStep, count: int) -> tuple[Tensor, Tensor]:
        first, second = torch.triu_indices(count, count, 1, device=step.batch.device)
        if not step.context.training or len(first) <= self.pairs:
            return first, second
        # soft ranks take [pairs, L, L] of memory: a batch of 64 has 2,016 pairs
        drawn = torch.randperm(len(first), generator=step.generator("pairs"), device=first.device)[: self.pairs]
        return first[drawn], second[drawn]


def soft_spearman_loss(fixed: Tensor, values: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Return the mean of 1 − ρ over rows [N, L], a scalar, with a gradient to `values` alone.

    `counted` [N, L] bool: the entries that are ranked. A row in which one side does not vary counts as 0.
    """
    fixed_ranks = center_ranks(compute_mean_ranks(fixed, counted), counted).to(values)
    ranks = center_ranks(compute_soft_ranks(values, counted, temperature), counted)
    squares = fixed_ranks.square().sum(-1) * ranks.square().sum(-1)
    varies = squares.detach() > MIN_VARIATION
    # the square root's derivative at 0 is infinite, and 0 · ∞ of a masked row would be NaN
    rho = (fixed_ranks * ranks).sum(-1) / squares.masked_fill(~varies, 1.0).sqrt()
    return ((1 - rho) * varies).sum() / len(values)


def compute_soft_ranks(values: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Return soft ranks [N, L]: ½ + Σ_m σ((v_l − v_m) / T) over counted m, T in standard deviations of the row."""
    variance = center_ranks(values, counted).square().sum(-1) / counted.sum(-1).clamp(min=1)
    scale = temperature * variance.masked_fill(variance == 0, 1.0).sqrt()[:, None, None]
    above = ((values[:, :, None] - values[:, None, :]) / scale).sigmoid()
    # m = l contributes ½: ranks start at 1, and equal values share their mean rank as in the metric
    return 0.5 + (above * counted[:, None, :]).sum(-1)
