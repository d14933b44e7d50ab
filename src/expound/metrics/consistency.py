"""Consistency: are examples with similar hidden states explained similarly?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.metrics.base import Metric
from expound.models import Batch, Capture, ExplainedModel
from expound.models.rank_correlation import compute_spearman, order_content_first

Across = Literal["tokens", "pairs"]


@dataclass(frozen=True, kw_only=True)
class Consistency(Metric):
    """Spearman's ρ between the distances of examples inside the model and the distances of their explanations.

    Hidden states are averaged over layers. All pairs of examples of the batch are compared position by position, from
    each one's first content position on, as far as both have content. The value therefore depends on the batch. Pairs
    with an undefined ρ (fewer than two positions, or no variation) are left out.

    Args:
        across: `tokens`: for each pair, ρ over positions l of ‖H_i[l] − H_j[l]‖₂ and |r_i[l] − r_j[l]| (IvRA, eq. 12
            and 18); an example's value is the mean over its pairs, so that the mean over a batch is the mean over
            pairs where all are defined. `pairs`: one ρ over all pairs of the batch, of ‖H̄_i − H̄_j‖₂ and ‖r_i − r_j‖₂,
            H̄ a mean over content too (Atanasova et al. 2020); every example of the batch has this value.

    Examples:
        Distances .4, 0, .3 inside the model, where a word's part of the probability is its state; 1, 0, 2 of scores.

        >>> judge("consistency", ["good fine film", "bad fine good"], [3, 2, 1, 2, 2, 3])
        0.5
    """

    across: Across = "tokens"
    card: ClassVar = MetricCard(
        name="consistency", family="consistency", higher_is_better=True, paper="IvRA, eq. 12", bounds=(-1, 1),
        equation=r"\rho_{\text{Spearman}} \left( \lVert H_i - H_j \rVert, |r_i - r_j| \right)",
        computed="For all pairs of texts of a batch: the rank correlation, over positions, between the distance of the "
        "model's hidden states (averaged over layers) and the difference of the two scores. A text's value is the mean "
        "over its pairs.",
        read="From −1 to 1. 1: texts that are similar to the model have similar explanations; 0: no relation, as "
        "`random` has. Undefined (NaN) for a batch of one text.",
        use="Are texts that are similar to the model explained similarly?",
        avoid="Do not compare values from runs with different `--batch-size`: only texts of the same batch are "
        "compared with each other.",
    )  # fmt: skip
    compares_examples: ClassVar[bool] = True

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; NaN for a batch of one."""
        with model.evaluation_mode():
            layers = model(batch, capture=Capture(hidden_states=True)).hidden_states
        states = torch.stack([layer.double() for layer in layers]).mean(0)
        # Content is moved to the front, so that padding on the left does not shift the positions that are compared.
        order = order_content_first(batch.content)
        content = batch.content.gather(1, order)
        states = states.gather(1, order[..., None].expand_as(states)) * content[..., None]
        scores = attribution.double().gather(1, order) * content
        correlate = _correlate_tokens if self.across == "tokens" else _correlate_pairs
        return {self.name: correlate(states, scores, content).float()}


def _correlate_tokens(states: Tensor, scores: Tensor, content: Tensor) -> Tensor:
    """Return the mean over an example's pairs of ρ over the positions that both have: [B]."""
    count = len(scores)
    values = scores.new_full((count, count), torch.nan)
    # One row at a time: all pairs at once would take B² · L · d numbers.
    for row in range(count - 1):
        others = slice(row + 1, None)
        state_distances = (states[row] - states[others]).norm(dim=-1)
        score_distances = (scores[row] - scores[others]).abs()
        rho = compute_spearman(state_distances, score_distances, content[row] & content[others])
        values[row, others], values[others, row] = rho, rho
    return values.nanmean(1)


def _correlate_pairs(states: Tensor, scores: Tensor, content: Tensor) -> Tensor:
    """Return ρ between the distances of states and of scores over all pairs of the batch, the same for all: [B]."""
    pooled = states.sum(1) / content.sum(1, keepdim=True).clamp(min=1)
    one, other = torch.triu_indices(len(scores), len(scores), 1, device=scores.device)
    state_distances = (pooled[one] - pooled[other]).norm(dim=-1)
    score_distances = (scores[one] - scores[other]).norm(dim=-1)
    has_content = content.any(1)
    valid = has_content[one] & has_content[other]
    return compute_spearman(state_distances[None], score_distances[None], valid[None]).expand(len(scores))
