"""Soft comprehensiveness and sufficiency: elements of word embeddings are set to zero at random, guided by the scores.

With scores a scaled to [0, 1], E^S keeps each element with probability a and E^C with probability 1 − a (Zhao and
Aletras 2023). D is the distance of the prediction from the whole input's prediction, D₀ the same when all content is
zero. Soft sufficiency is max(0, D₀ − D(E^S)) / D₀ and soft comprehensiveness D(E^C) / D₀. Both are NaN if D₀ is below
a millionth. Draws belong to an example, so that all methods get the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.explainers.seeding import example_generators
from expound.metrics.base import Metric
from expound.metrics.faithfulness.unit_order import check_positive
from expound.models import Batch, ExplainedModel
from expound.models.batch import get_token_budget, pack

Distance = Literal["hellinger", "reagent", "probability"]
NOTHING = 1e-6


@dataclass(frozen=True, kw_only=True)
class SoftErasure(Metric):
    """Distance that the prediction moves when elements of word embeddings are set to zero at random.

    Elements of tokens with high scores are likely to be zeroed or, with `keeps_top`, likely to be kept.

    Args:
        distance: `hellinger`, ‖√p − √q‖₂ / √2; `reagent`, Σ (√p − √q)² / √2 as in Zhao and Shan's code; `probability`,
            the drop of the target's probability, at least 0 (the metric is then at most 1).
        fraction: mean probability of being kept over an example's content, the same for every method: scores are
            multiplied, at most to 1, and the remaining difference is divided among the other tokens. None: scores as
            they are, so that a method with higher scores keeps more and is more sufficient.
        n_samples: random draws for each example; the value is their mean.
        seed: with the example's content it determines the draws, which are the same for all methods.
    """

    distance: Distance = "hellinger"
    fraction: float | None = None
    n_samples: int = 4
    seed: int = 0
    keeps_top: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise ExpoundError(f"{self.name} needs a fraction between 0 and 1, got {self.fraction}")
        check_positive(self.name, n_samples=self.n_samples)

    def keep_probabilities(self, scaled: Tensor) -> Tensor:
        """Return the probability [B, L] that an element is kept, from scores [B, L] in [0, 1]."""
        # The direction of the paper; the reference code's active wrapper has the two metrics the other way round.
        return scaled if self.keeps_top else 1 - scaled

    def value(self, distance: Tensor, farthest: Tensor) -> Tensor:
        """Return the metric [B] from the distances D and D₀ [B]."""
        if self.keeps_top:
            return (farthest - distance).clamp(min=0) / farthest
        share = distance / farthest
        return share.clamp(max=1) if self.distance == "probability" else share

    def supports(self, model: ExplainedModel) -> bool:
        """Return whether the model's prediction is a distribution, or one probability for `distance="probability"`."""
        return model.task.supports("decisions") or (model.task.is_generated and self.distance == "probability")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; NaN if zeros give the whole input's prediction.

        Raises:
            ExpoundError: a task without a distribution.
        """
        if not self.supports(model):
            raise ExpoundError(f"{self.name} compares distributions, and a {model.task.name} has none here")
        batch = replace(batch, content=batch.removable)
        ends = torch.stack([torch.ones_like(batch.content), torch.zeros_like(batch.content)])
        whole, empty = model.predict_perturbed(batch, ends, "zero").double()
        keep = self.keep_probabilities(scale_scores(attribution, batch.content, self.fraction))
        distances = []
        rows_of_batch = torch.arange(len(batch), device=batch.device)
        for part in pack([batch.length] * len(batch), get_token_budget(batch.device)):
            rows = rows_of_batch[part]
            distances.append(self._mean_distance(model, batch.select(rows), keep[rows], whole[rows], target[rows]))
        farthest = self.distance_between(model, whole, empty, target)
        value = self.value(torch.cat(distances), farthest)
        return {self.name: value.masked_fill(farthest < NOTHING, torch.nan).float()}

    def _mean_distance(
        self, model: ExplainedModel, batch: Batch, keep: Tensor, whole: Tensor, target: Tensor
    ) -> Tensor:
        """Return the mean distance [B] over random erasures; `keep` [B, L]: probabilities, `whole`: [B, C]."""
        embeddings, random = model.embed(batch), example_generators(batch, self.seed)
        distances = []
        for _ in range(self.n_samples):
            uniform = _draw_uniform(random, batch.content, embeddings.shape[-1])
            with model.evaluation_mode():
                outputs = model(batch, embeddings=drop_elements(embeddings, batch.content, keep, uniform))
            answers = model.task.probabilities(outputs.logits).double()
            distances.append(self.distance_between(model, whole, answers, target))
        return torch.stack(distances).mean(0)

    def distance_between(self, model: ExplainedModel, whole: Tensor, erased: Tensor, target: Tensor) -> Tensor:
        """Return the distance [B] between predictions on the whole and the erased input [B, C] (spans: [B, 2, L])."""
        if self.distance == "probability":
            return (model.task.probability(whole, target) - model.task.probability(erased, target)).clamp(min=0)
        if not model.task.supports("one_choice"):
            # Labels are independent: the distribution is that of the target label being on or off.
            whole, erased = model.task.pick(whole, target), model.task.pick(erased, target)
            whole, erased = torch.stack([whole, 1 - whole], -1), torch.stack([erased, 1 - erased], -1)
        half = (whole.sqrt() - erased.sqrt()).square().sum(-1) / 2
        # Start and end of a span are independent, so their Bhattacharyya coefficients multiply.
        squared = half if half.ndim == 1 else 1 - (1 - half).prod(-1)
        if self.distance == "hellinger":
            return squared.sqrt()
        return math.sqrt(2) * squared


@dataclass(frozen=True, kw_only=True)
class SoftComprehensiveness(SoftErasure):
    """Distance moved when high scores are zeroed, as a share of the distance when all embeddings are zero.

    Examples:
        >>> judge("soft_comprehensiveness?distance=probability", "good fine", [1, 0])  # (.7 − .4) / (.7 − .2)
        0.6
    """

    card: ClassVar = MetricCard(
        name="soft_comprehensiveness", family="faithfulness", higher_is_better=True, paper="Zhao and Aletras 2023",
        bounds=(0, None),
        equation=r"\frac{D(x, x \odot (1 - m))}{D(x, 0)}, \; m_i \sim \text{Bernoulli}(s_i)",
        computed="Scores are scaled from 0 to 1 within a text. Each element of a token's embedding is set to zero with "
        "the token's score as probability, and the model is asked again. D is the Hellinger distance between the two "
        "predictions (`distance`), as a share of the distance to the prediction when all embeddings are zero; the mean "
        "over `n_samples`.",
        read="Higher is better. 0: the prediction did not move; 1: it moved as far as without any text; above 1: "
        "farther. Undefined (NaN) if zeros give the same prediction as the text. {control}",
        use="Deletion of whole tokens is too coarse, and the sizes of the scores should count.",
        avoid="Do not use it when only the order of scores means something, as with ranks: here scores are "
        "probabilities.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SoftSufficiency(SoftErasure):
    """Share of the largest distance that is avoided when high scores are kept: 1 is best.

    Examples:
        >>> judge("soft_sufficiency?distance=probability", "good fine", [1, 0])  # 1 − (.7 − .5) / (.7 − .2)
        0.6
    """

    card: ClassVar = MetricCard(
        name="soft_sufficiency", family="faithfulness", higher_is_better=True, paper="Zhao and Aletras 2023",
        bounds=(0, 1),
        equation=r"\frac{\max(0, D(x, 0) - D(x, x \odot m))}{D(x, 0)}, \; m_i \sim \text{Bernoulli}(s_i)",
        computed="As `soft_comprehensiveness`, but each element of a token's embedding is kept with the token's score "
        "as probability.",
        read="From 0 to 1, higher is better. 1: the prediction did not move; 0: it moved as far as without any text. A "
        "method that scores everything high keeps more and looks better: `fraction` fixes how much is kept. {control}",
        use="Together with `soft_comprehensiveness`.",
        avoid="Do not use it when only the order of scores means something, as with ranks: here scores are "
        "probabilities.",
    )  # fmt: skip
    keeps_top: ClassVar = True


def scale_scores(attribution: Tensor, content: Tensor, fraction: float | None = None) -> Tensor:
    """Return scores [B, L] in float64, scaled from 0 (an example's lowest) to 1 (its highest), 0 outside content.

    Equal scores become ½. With `fraction`, the scores are then multiplied, at most to 1, so that their mean over
    content is this fraction. If too few scores are above 0 for that, these become 1 and all others get the same value.
    """
    scores = attribution.double()
    low = scores.masked_fill(~content, torch.inf).amin(1, keepdim=True)
    high = scores.masked_fill(~content, -torch.inf).amax(1, keepdim=True)
    unit = torch.where(high > low, (scores - low) / (high - low), 0.5) * content
    return unit if fraction is None else _scale_to_mean(unit, content, fraction)


def _scale_to_mean(unit: Tensor, content: Tensor, fraction: float) -> Tensor:
    """Return min(1, c · unit) with the c for which the mean over content is `fraction`, see `scale_scores`."""
    count = content.sum(1, keepdim=True).double()
    total = fraction * count
    # If exactly the m highest scores are clipped to 1, c = (total − m) / (sum of the others): try every m.
    decreasing = unit.sort(1, descending=True).values
    clipped = torch.arange(unit.shape[1], device=unit.device)
    rest = decreasing.flip(1).cumsum(1).flip(1)
    factor = (total - clipped) / rest
    fits = (factor * decreasing <= 1) & (factor > 0) & (rest > 0)
    first = fits.long().argmax(1, keepdim=True)
    positive = (unit > 0).sum(1, keepdim=True)
    others = (total - positive) / (count - positive).clamp(min=1)
    filled = torch.where(unit > 0, 1.0, others) * content
    return torch.where(fits.any(1, keepdim=True), (unit * factor.gather(1, first)).clamp(max=1), filled)


def drop_elements(embeddings: Tensor, content: Tensor, keep: Tensor, uniform: Tensor) -> Tensor:
    """Return embeddings [B, L, d] with elements of content set to zero where `uniform` [B, L, d] ≥ `keep` [B, L]."""
    is_kept = (uniform < keep[..., None]) | ~content[..., None]
    return embeddings * is_kept


def _draw_uniform(random: Sequence[np.random.Generator], content: Tensor, width: int) -> Tensor:
    """Return uniform values [B, L, d] at content positions, each example's from its own generator."""
    drawn = torch.zeros(*content.shape, width, dtype=torch.float64)
    # Only content positions draw, so that padding of the batch does not change an example's numbers.
    for row, generator, positions in zip(drawn, random, content.cpu(), strict=True):
        row[positions] = torch.from_numpy(generator.random((int(positions.sum()), width)))
    return drawn.to(content.device)
