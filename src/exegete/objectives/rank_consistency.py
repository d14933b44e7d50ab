"""The metric of consistency itself as a loss, with soft ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models.rank_correlation import centre_ranks, compute_mean_ranks, order_content_first
from exegete.objectives.base import TrainingStep
from exegete.objectives.consistency import PairCriterion

MIN_VARIATION = 1e-9


@dataclass(frozen=True)
class RankConsistencyLoss(PairCriterion):
    """1 − ρ of IvRA's metric of consistency (eq. 12 and 18), mean over pairs of a batch, with soft ranks.

    The printed loss (eq. 13) is least where all explanations are equal, on one special token say; a rank correlation is
    not. Of a pair: a_l = ‖H_i[l] − H_j[l]‖₂ of hidden states, mean over layers and held still, b_l = |r_i[l] − r_j[l]|,
    over the positions l from the first content one on where both have content. a has its ranks, b soft ones,
    ½ + Σ_m σ((b_l − b_m) / T), T a share of the standard deviation of b: for T → 0 the ranks of the metric,
    where equal values share their mean. A pair without two different values on either side has 0.

    Args:
        explainer: see `Criterion`, as `weight` and `lr_multiplier`.
        temperature: T in standard deviations.
        pairs: as many are drawn in a training step of a batch that has more.
    """

    temperature: float = 0.1
    pairs: int = 256
    name: ClassVar[str] = "rank_consistency"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0 or self.pairs < 1:
            raise ExegeteError(
                f"the temperature of soft ranks is above 0 and there is a pair, got {self.temperature}, {self.pairs}"
            )

    def __call__(self, step: TrainingStep) -> Tensor:
        """The mean over the pairs, a scalar; of a batch of one 0."""
        scores, order = self.explain_prediction(step), order_content_first(step.batch.content)
        there = step.batch.content.gather(1, order)
        precise = torch.promote_types(scores.dtype, torch.float32)
        states = torch.stack([layer.detach().to(precise) for layer in step.outputs.hidden_states]).mean(0)
        states = states.gather(1, order[..., None].expand_as(states))
        one, other = self._draw_pairs(step, len(scores))
        if not len(one):
            return scores.sum() * 0
        scores = scores.gather(1, order)
        outside = (scores[one] - scores[other]).abs()
        inside = (states[one] - states[other]).norm(dim=-1)
        return soft_spearman_loss(inside, outside, there[one] & there[other], self.temperature)

    def _draw_pairs(self, step: TrainingStep, count: int) -> tuple[Tensor, Tensor]:
        one, other = torch.triu_indices(count, count, 1, device=step.batch.device)
        if not step.context.training or len(one) <= self.pairs:
            return one, other
        drawn = torch.randperm(len(one), generator=step.generator("pairs"), device=one.device)[: self.pairs]
        return one[drawn], other[drawn]


def soft_spearman_loss(fixed: Tensor, moved: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Mean of 1 − ρ over rows [N, L], a scalar; with a gradient to `moved` alone. A row that does not vary counts 0."""
    known = centre_ranks(compute_mean_ranks(fixed, counted), counted).to(moved)
    ranks = centre_ranks(compute_soft_ranks(moved, counted, temperature), counted)
    squares = known.square().sum(-1) * ranks.square().sum(-1)
    varied = squares.detach() > MIN_VARIATION
    rho = (known * ranks).sum(-1) / squares.masked_fill(~varied, 1.0).sqrt()
    return ((1 - rho) * varied).sum() / len(moved)


def compute_soft_ranks(values: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """[N, L] ½ + Σ_m σ((v_l − v_m) / T) over the counted m; T: `temperature` standard deviations of the row's own."""
    variance = centre_ranks(values, counted).square().sum(-1) / counted.sum(-1).clamp(min=1)
    scale = temperature * variance.masked_fill(variance == 0, 1.0).sqrt()[:, None, None]
    above = ((values[:, :, None] - values[:, None, :]) / scale).sigmoid()
    return 0.5 + (above * counted[:, None, :]).sum(-1)
