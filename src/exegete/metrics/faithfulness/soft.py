"""Faithfulness by degrees: every element of a word embedding stays with a probability that the score decides.

E^S keeps elements with probability a, E^C with 1 − a, a the scores scaled to [0, 1] (Zhao and Aletras 2023). With D the
distance of the answer from that to the whole input, and D₀ where all content is zero, soft sufficiency is
max(0, D₀ − D(E^S)) / D₀ and soft comprehensiveness D(E^C) / D₀. NaN where D₀ is below a millionth. Draws belong to an
example, so that all methods get the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError, unknown
from exegete.explainers.seeding import example_generators
from exegete.metrics.base import Metric
from exegete.metrics.faithfulness.unit_order import check_positive
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import TOKENS_PER_PASS

Distance = Literal["hellinger", "reagent", "probability"]
NOTHING = 1e-6


@dataclass(frozen=True, kw_only=True)
class SoftErasure(Metric):
    """Distance that the answer moves when elements of word embeddings are set to zero at random.

    Args:
        distance: `hellinger`, ‖√p − √q‖₂ / √2; `reagent`, Σ (√p − √q)² / √2 as Zhao and Shan's code has it;
            `probability`, the fall of the target's probability, at least 0 (values then end at 1).
        share: the mean probability to stay over an example's content, the same for every method: scores are multiplied
            up to certainty, and what is still missing is divided among the others. None: scores as they are, so that
            a method which keeps more is more sufficient.
        draws: random draws for each example; the value is their mean.
        seed: with the example's own content it decides the draws, which are the same for all methods.
    """

    distance: Distance = "hellinger"
    share: float | None = None
    draws: int = 4
    seed: int = 0
    keeps_top: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.distance not in get_args(Distance):
            raise unknown("distance", self.distance, get_args(Distance))
        if self.share is not None and not 0 < self.share < 1:
            raise ExegeteError(f"{self.name} needs a share between 0 and 1, got {self.share}")
        check_positive(self.name, draws=self.draws)

    def keep_probabilities(self, scale_scores: Tensor) -> Tensor:
        """[B, L] The probability that an element stays, from scores in [0, 1]."""
        return scale_scores if self.keeps_top else 1 - scale_scores

    def value(self, moved: Tensor, farthest: Tensor) -> Tensor:
        """[B] The metric, from D and D₀."""
        if self.keeps_top:
            return (farthest - moved).clamp(min=0) / farthest
        share = moved / farthest
        return share.clamp(max=1) if self.distance == "probability" else share

    def supports(self, model: ExplainedModel) -> bool:
        """Not to regressions; to generated text by its probability alone."""
        return model.task.name not in ("regression", "generation" if self.distance != "probability" else "")

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; NaN where zeros are answered like the whole input; without a distribution an ExegeteError."""
        if not self.supports(model):
            raise ExegeteError(f"{self.name} compares distributions, and a {model.task.name} has none here")
        batch = replace(batch, content=batch.removable)
        ends = torch.stack([torch.ones_like(batch.content), torch.zeros_like(batch.content)])
        whole, nothing = model.predict_perturbed(batch, ends, "zero").double()
        keep_probabilities = self.keep_probabilities(scale_scores(attribution, batch.content, self.share))
        moved = torch.cat(
            [
                self._mean_distance(model, batch.select(rows), keep_probabilities[rows], whole[rows], target[rows])
                for rows in torch.arange(len(batch), device=batch.device).split(_rows_per_pass(batch))
            ]
        )
        farthest = self.distance_between(model, whole, nothing, target)
        return {self.name: self.value(moved, farthest).masked_fill(farthest < NOTHING, torch.nan).float()}

    def _mean_distance(
        self, model: ExplainedModel, batch: Batch, keep_probabilities: Tensor, whole: Tensor, target: Tensor
    ) -> Tensor:
        """[B] D, mean over draws."""
        embeddings, random = model.embed(batch), example_generators(batch, self.seed)
        distance_between = []
        for _ in range(self.draws):
            uniform = _draw_uniform(random, batch.content, embeddings.shape[-1])
            with model.evaluation_mode():
                outputs = model(batch, embeddings=drop_elements(embeddings, batch.content, keep_probabilities, uniform))
            distance_between.append(
                self.distance_between(model, whole, model.task.probabilities(outputs.logits).double(), target)
            )
        return torch.stack(distance_between).mean(0)

    def distance_between(self, model: ExplainedModel, one: Tensor, other: Tensor, target: Tensor) -> Tensor:
        """[B] The distance of two answers [B, C] (spans: [B, 2, L])."""
        if self.distance == "probability":
            p, q = (model.task.probability(answer, target) for answer in (one, other))
            return (p - q).clamp(min=0)
        if model.task.name == "multi_label":
            one, other = (torch.stack([p, 1 - p], -1) for p in (model.task.pick(x, target) for x in (one, other)))
        half = (one.sqrt() - other.sqrt()).square().sum(-1) / 2
        squared = half if model.task.name != "span" else 1 - (1 - half).prod(-1)
        return squared.sqrt() if self.distance == "hellinger" else math.sqrt(2) * squared


@dataclass(frozen=True, kw_only=True)
class SoftComprehensiveness(SoftErasure):
    """How far the answer moves when what scores high goes; above 1 where it moves farther than by zeros alone."""

    card: ClassVar = MetricCard(
        name="soft_comprehensiveness", family="faithfulness", higher_is_better=True, paper="Zhao and Aletras 2023",
        bounds=(0, None),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SoftSufficiency(SoftErasure):
    """How near the answer stays when what scores high stays: 1 is best."""

    card: ClassVar = MetricCard(
        name="soft_sufficiency", family="faithfulness", higher_is_better=True, paper="Zhao and Aletras 2023",
        bounds=(0, 1),
    )  # fmt: skip
    keeps_top: ClassVar = True


def scale_scores(attribution: Tensor, content: Tensor, share: float | None = None) -> Tensor:
    """[B, L] Scores from 0, an example's lowest, to 1, its highest, in float64; equal ones are ½; 0 outside content.

    With `share` their mean over content is that: min(1, c · score) for the right c, or, where there is none because too
    few scores are above 0, these at 1 and the rest alike.
    """
    scores = attribution.double()
    low = scores.masked_fill(~content, torch.inf).amin(1, keepdim=True)
    high = scores.masked_fill(~content, -torch.inf).amax(1, keepdim=True)
    unit = torch.where(high > low, (scores - low) / (high - low), 0.5) * content
    return unit if share is None else _scale_to_mean(unit, content, share)


def _scale_to_mean(unit: Tensor, content: Tensor, share: float) -> Tensor:
    """[B, L] See `scale_scores`."""
    count = content.sum(1, keepdim=True).double()
    wanted = share * count
    falling = unit.sort(1, descending=True).values
    certain = torch.arange(unit.shape[1], device=unit.device)
    rest = falling.flip(1).cumsum(1).flip(1)  # of all but the first m scores, at place m
    factor = (wanted - certain) / rest
    fits = (factor * falling <= 1) & (factor > 0) & (rest > 0)
    first = fits.long().argmax(1, keepdim=True)
    positive = (unit > 0).sum(1, keepdim=True)
    others = (wanted - positive) / (count - positive).clamp(min=1)
    filled = torch.where(unit > 0, 1.0, others) * content
    return torch.where(fits.any(1, keepdim=True), (unit * factor.gather(1, first)).clamp(max=1), filled)


def drop_elements(embeddings: Tensor, content: Tensor, keep_probabilities: Tensor, uniform: Tensor) -> Tensor:
    """[B, L, d] Elements where `uniform` [B, L, d] is below the position's chance, zeros elsewhere; all but content."""
    stays = (uniform < keep_probabilities[..., None]) | ~content[..., None]
    return embeddings * stays


def _draw_uniform(random: Sequence[np.random.Generator], content: Tensor, width: int) -> Tensor:
    """[B, L, d] Uniform numbers at content positions, each example's from its own generator."""
    drawn = torch.zeros(*content.shape, width, dtype=torch.float64)
    for row, own, there in zip(drawn, random, content.cpu(), strict=True):
        row[there] = torch.from_numpy(own.random((int(there.sum()), width)))
    return drawn.to(content.device)


def _rows_per_pass(batch: Batch) -> int:
    return max(1, TOKENS_PER_PASS.get(batch.device.type, TOKENS_PER_PASS["cuda"]) // batch.length)
