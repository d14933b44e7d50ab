"""Does the method explain alike what the model sees as alike?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import unknown
from exegete.metrics.base import Metric
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.rank_correlation import compute_spearman, order_content_first

Across = Literal["tokens", "pairs"]


@dataclass(frozen=True, kw_only=True)
class Consistency(Metric):
    """Spearman's ρ between how far apart examples are inside the model and in their explanations.

    Hidden states are means over layers. Every two examples of the batch are compared position by position, each from
    its first content position on, where both have content: a batch is what is judged, and another one gives other
    values. Pairs of which ρ is undefined (fewer than two positions, or no variation) are left out.

    Args:
        across: `tokens`: for each pair, ρ over positions l of ‖H_i[l] − H_j[l]‖₂ and |r_i[l] − r_j[l]| (IvRA, eq. 12
            and 18); an example's value is the mean over its pairs, so that the mean over a batch is the mean over
            pairs where all are defined. `pairs`: one ρ over all pairs of the batch, of ‖H̄_i − H̄_j‖₂ and ‖r_i − r_j‖₂,
            H̄ a mean over content too (Atanasova et al. 2020); every example of the batch has this value.
    """

    across: Across = "tokens"
    card: ClassVar = MetricCard(
        name="consistency", family="consistency", higher_is_better=True, paper="IvRA, eq. 12", bounds=(-1, 1)
    )
    compares_examples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.across not in get_args(Across):
            raise unknown("reading of consistency", self.across, get_args(Across))

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; NaN for a batch of one."""
        with model.evaluation_mode():
            layers = model(batch, capture=Capture(hidden_states=True)).hidden_states
        states = torch.stack([layer.double() for layer in layers]).mean(0)
        order = order_content_first(batch.content)
        there = batch.content.gather(1, order)
        states = states.gather(1, order[..., None].expand_as(states)) * there[..., None]
        scores = attribution.double().gather(1, order) * there
        found = _correlate_tokens if self.across == "tokens" else _correlate_pairs
        return {self.name: found(states, scores, there).float()}


def _correlate_tokens(states: Tensor, scores: Tensor, there: Tensor) -> Tensor:
    """[B] Mean over an example's pairs of ρ over shared positions."""
    count = len(scores)
    values = scores.new_full((count, count), torch.nan)
    for row in range(count - 1):
        others = slice(row + 1, None)
        inside = (states[row] - states[others]).norm(dim=-1)
        outside = (scores[row] - scores[others]).abs()
        rho = compute_spearman(inside, outside, there[row] & there[others])
        values[row, others], values[others, row] = rho, rho
    return values.nanmean(1)


def _correlate_pairs(states: Tensor, scores: Tensor, there: Tensor) -> Tensor:
    """[B] The one ρ over all pairs."""
    pooled = states.sum(1) / there.sum(1, keepdim=True).clamp(min=1)
    one, other = torch.triu_indices(len(scores), len(scores), 1, device=scores.device)
    inside, outside = ((x[one] - x[other]).norm(dim=-1)[None] for x in (pooled, scores))
    there_too = there.any(1)[one] & there.any(1)[other]
    return compute_spearman(inside, outside, there_too[None]).expand(len(scores))
