"""Does the attribution put first what people marked?

NaN for an example that nobody looked at, and where nothing or everything was marked: there is nothing to tell apart.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError, unknown
from exegete.explainers.units import number_units
from exegete.metrics.base import Metric
from exegete.metrics.ranking import check_fractions, fractions_to_counts, ranks
from exegete.models import Batch, ExplainedModel


class RankedUnits(NamedTuple):
    """Words or tokens by falling score, equal scores in the order of the text: what is no candidate comes last.

    `scores` [B, U] float64, `gold` [B, U]: marked by people, `candidates` [B, U].
    """

    scores: Tensor
    gold: Tensor
    candidates: Tensor


@dataclass(frozen=True, kw_only=True)
class Plausibility(Metric):
    """Scores of words or other units against those that people marked.

    `level`: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is the sum of its tokens', and it is
    marked if one of them is.
    `specials`: special tokens count as unmarked tokens, with the score 0 that attributions have there.
    `absolute`: units are ordered by the size of their scores, without the sign.
    """

    level: Granularity = "word"
    specials: bool = False
    absolute: bool = True

    def __post_init__(self) -> None:
        if self.level not in get_args(Granularity):
            raise unknown("level", self.level, get_args(Granularity))
        if self.specials and self.level != "token":
            raise ExegeteError(f"special tokens belong to no {self.level}: specials=True needs level='token'")

    @abstractmethod
    def value(self, rank_units: RankedUnits) -> Tensor:
        """[B] The metric's formula; anything where it is undefined."""

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; the target does not matter, and without any rationale in the batch all are NaN."""
        if batch.rationale_mask is None:
            return {self.name: torch.full((len(batch),), torch.nan, device=batch.device)}
        rank_units = self.rank_units(batch, batch.rationale_mask, attribution)
        marked, unmarked = rank_units.gold.any(1), (rank_units.candidates & ~rank_units.gold).any(1)
        defined = marked & unmarked if batch.has_rationale is None else marked & unmarked & batch.has_rationale
        return {self.name: self.value(rank_units).float().masked_fill(~defined, torch.nan)}

    def rank_units(self, batch: Batch, rationale: Tensor, attribution: Tensor) -> RankedUnits:
        """The units that are compared, in the attribution's order."""
        gold, scores = rationale & batch.content, attribution.double()
        candidates = batch.attended if self.specials else batch.content
        if self.level != "token":
            scores, gold, candidates = _pool_units(number_units(batch, self.level), scores, gold)
        scores = scores.abs() if self.absolute else scores
        scores = scores.masked_fill(~candidates, -torch.inf)
        order = ranks(scores, candidates).argsort(dim=1)
        return RankedUnits(*(each.gather(1, order) for each in (scores, gold, candidates)))


@dataclass(frozen=True, kw_only=True)
class Auc(Plausibility):
    """Area under the ROC curve: how often a marked unit is ahead of an unmarked one; ties count half."""

    card: ClassVar = MetricCard(
        name="auc", family="plausibility", higher_is_better=True, paper="Fawcett 2006", bounds=(0, 1),
        needs_rationale=True, label="AUC",
    )  # fmt: skip

    def value(self, rank_units: RankedUnits) -> Tensor:
        """Mann and Whitney's statistic, over groups of equal scores."""
        first, last = _find_ties(rank_units.scores)
        negatives = _count_before(rank_units.candidates & ~rank_units.gold)
        ahead, level = negatives.gather(1, first), negatives.gather(1, last + 1)
        behind = (negatives[:, -1:] - (ahead + level) / 2) * rank_units.gold
        return behind.sum(1) / (rank_units.gold.sum(1) * negatives[:, -1])


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(Plausibility):
    """Precision at every marked unit, averaged; units of equal score come together (step-wise, not interpolated)."""

    card: ClassVar = MetricCard(
        name="average_precision", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(0, 1), needs_rationale=True, label="Average precision",
    )  # fmt: skip

    def value(self, rank_units: RankedUnits) -> Tensor:
        """Precision at the end of each marked unit's group."""
        _, last = _find_ties(rank_units.scores)
        precision = _count_before(rank_units.gold).gather(1, last + 1) / (last + 1)
        return (precision * rank_units.gold).sum(1) / rank_units.gold.sum(1)


@dataclass(frozen=True, kw_only=True)
class RecallAtK(Plausibility):
    """Share of the G marked units among the first G; of equal scores the first in the text counts."""

    card: ClassVar = MetricCard(
        name="recall_at_k", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(0, 1),
        needs_rationale=True, label="Recall@k",
    )  # fmt: skip

    def value(self, rank_units: RankedUnits) -> Tensor:
        """The number of marked units among the first G, divided by G."""
        size = rank_units.gold.sum(1)
        return _count_hits(rank_units.gold, size) / size


@dataclass(frozen=True, kw_only=True)
class NeedleRank(Plausibility):
    """The place of the first marked unit in the attribution's order, from 1; of equal scores their mean place."""

    card: ClassVar = MetricCard(
        name="needle_rank", family="plausibility", higher_is_better=False, paper="Hsieh et al. 2024",
        bounds=(1, None), needs_rationale=True,
    )  # fmt: skip

    def value(self, rank_units: RankedUnits) -> Tensor:
        """The middle of the group of equal scores that the first marked unit is in."""
        first, last = _find_ties(rank_units.scores)
        best = rank_units.gold.long().argmax(1, keepdim=True)
        return 1 + (first.gather(1, best) + last.gather(1, best))[:, 0] / 2


@dataclass(frozen=True, kw_only=True)
class TokenF1(Plausibility):
    """F1 of the first units as a set against the marked ones; of equal scores the first in the text counts.

    `k`: None takes as many as were marked (then it equals `recall_at_k`), a number below 1 is that fraction of the
    units, rounded up, and a number from 1 on is that many units, or all there are.
    """

    k: float | None = None
    card: ClassVar = MetricCard(
        name="token_f1", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(0, 1),
        needs_rationale=True, label="F1",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None and self.k < 1:
            check_fractions((self.k,))

    def value(self, rank_units: RankedUnits) -> Tensor:
        """2 · hits / (chosen + marked)."""
        hits, size = self.count_hits(rank_units)
        return 2 * hits / size

    def count_hits(self, rank_units: RankedUnits) -> tuple[Tensor, Tensor]:
        """Hits [B], and units that were chosen or marked [B], those that were both twice."""
        marked, count = rank_units.gold.sum(1), rank_units.candidates.sum(1)
        size = marked if self.k is None else self._size(count, self.k)
        return _count_hits(rank_units.gold, size), size + marked

    @staticmethod
    def _size(count: Tensor, k: float) -> Tensor:
        return fractions_to_counts(count, (k,))[0] if k < 1 else count.clamp(max=int(k))


def _pool_units(unit: Tensor, scores: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, marks and existence [B, U] of units, from those of positions [B, L]."""
    index, inside = unit.clamp(min=0), unit >= 0
    zeros = scores.new_zeros(len(unit), int(index.max()) + 1)
    summed, marks, tokens = (zeros.scatter_add(1, index, (each * inside).to(zeros)) for each in (scores, gold, inside))
    return summed, marks > 0, tokens > 0


def _find_ties(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[B, U] Where the group of equal scores around each place of the sorted scores begins, and its last place."""
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    changes = scores[:, 1:] != scores[:, :-1]
    edge = torch.ones_like(changes[:, :1]) if scores.shape[1] > 1 else torch.ones_like(scores, dtype=torch.bool)
    first = places.where(torch.cat([edge, changes], 1), 0).cummax(1).values
    last = places.where(torch.cat([changes, edge], 1), scores.shape[1] - 1).flip(1).cummin(1).values.flip(1)
    return first, last


def _count_before(which: Tensor) -> Tensor:
    """[B, U + 1] How many come before each place, in float64; the last entry counts all."""
    return torch.nn.functional.pad(which.cumsum(1), (1, 0)).double()


def _count_hits(gold: Tensor, size: Tensor) -> Tensor:
    """[B] Marked units among the first `size` [B]."""
    return _count_before(gold).gather(1, size[:, None]).squeeze(1)
