"""Plausibility: do the highest scores agree with what people marked as evidence?

Values are NaN for examples without annotation, and if all or no units are marked: no order can then be judged.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.data.readers.marked import find_runs
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.units import number_units
from expound.metrics.base import Metric
from expound.metrics.ranking import check_fractions, fractions_to_counts, ranks
from expound.models import Batch, ExplainedModel


class RankedUnits(NamedTuple):
    """Words or other units sorted by decreasing score; ties keep the order of the text, and padding comes last.

    `scores` [B, U] float64. `gold` [B, U]: whether people marked the unit. `candidates` [B, U]: whether it exists.
    `places` [B, U]: its place in the text.
    """

    scores: Tensor
    gold: Tensor
    candidates: Tensor
    places: Tensor


@dataclass(frozen=True, kw_only=True)
class Plausibility(Metric):
    """Base of the metrics that compare the order of units with the units that people marked.

    `unit`: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is the sum of its tokens' scores, and
    a unit is marked if one of its tokens is. `special_tokens`: count special tokens as unmarked tokens with score 0.
    `absolute`: order units by the size of their scores, without the sign.
    """

    unit: UnitName = "word"
    special_tokens: bool = False
    absolute: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.special_tokens and self.unit != "token":
            raise ExpoundError(f"special tokens belong to no {self.unit}: special_tokens=True needs unit='token'")

    @abstractmethod
    def value(self, ranked: RankedUnits) -> Tensor:
        """Return the metric of each example [B]; values of examples without or with only marked units are ignored."""

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; the model and the target do not matter."""
        if batch.rationale_mask is None:
            return {self.name: torch.full((len(batch),), torch.nan, device=batch.device)}
        ranked = self.rank_units(batch, batch.rationale_mask, attribution)
        defined = ranked.gold.any(1) & (ranked.candidates & ~ranked.gold).any(1)
        if batch.has_rationale is not None:
            defined &= batch.has_rationale
        values = self.values(ranked).items()
        return {name: value.float().masked_fill(~defined, torch.nan) for name, value in values}

    def values(self, ranked: RankedUnits) -> dict[str, Tensor]:
        """Return all values of the metric by name, each [B]; metrics with one value define `value`."""
        return {self.name: self.value(ranked)}

    def rank_units(self, batch: Batch, rationale_mask: Tensor, attribution: Tensor) -> RankedUnits:
        """Return the units to compare [B, U], sorted by the attribution; `rationale_mask` [B, L]: marks of people."""
        gold, scores = rationale_mask & batch.content, attribution.double()
        candidates = batch.attended if self.special_tokens else batch.content
        if self.unit != "token":
            scores, gold, candidates = _pool_units(number_units(batch, self.unit), scores, gold)
        # The size is taken of a word's sum: its tokens' scores of opposite signs cancel first.
        scores = scores.abs() if self.absolute else scores
        scores = scores.masked_fill(~candidates, -torch.inf)
        order = ranks(scores, candidates).argsort(dim=1)
        return RankedUnits(scores.gather(1, order), gold.gather(1, order), candidates.gather(1, order), order)


@dataclass(frozen=True, kw_only=True)
class RationaleAuc(Plausibility):
    """Area under the ROC curve: chance that a marked unit has a higher score than an unmarked one; ties count ½.

    Examples:
        "good" (3) and "fine" (1) against "film" (2) and "cast" (0): three of four pairs.

        >>> judge("rationale_auc", "good film fine cast", [3, 2, 1, 0], rationale=[[0, 4], [10, 14]])
        0.75
    """

    card: ClassVar = MetricCard(
        name="rationale_auc", family="plausibility", higher_is_better=True, paper="Fawcett 2006", bounds=(0, 1),
        needs_rationale=True, label="AUC",
        equation=r"P(s_{\text{marked}} > s_{\text{unmarked}})",
        computed="The share of pairs of a marked and an unmarked word in which the marked word has the larger score; "
        "ties count half. Scores are compared by size, without the sign (`absolute`). A word's score is the sum of its "
        "tokens' scores, and a word is marked if one of its tokens is.",
        read="0.5: as by chance; 1: every marked word is ahead of every other; below 0.5: marked words come last. "
        "Undefined (NaN) if nothing, or everything, is marked.",
        use="People marked rationales, and texts have different lengths.",
        avoid="Do not use it as a measure of faithfulness: the model may rely on other words than people do.",
    )  # fmt: skip

    def value(self, ranked: RankedUnits) -> Tensor:
        """Return the Mann-Whitney statistic [B], computed over groups of equal scores."""
        first, last = _find_ties(ranked.scores)
        negatives = _count_before(ranked.candidates & ~ranked.gold)
        # Negatives before the group count fully and those inside it half: the mean of both counts.
        ahead, ahead_or_tied = negatives.gather(1, first), negatives.gather(1, last + 1)
        behind = (negatives[:, -1:] - (ahead + ahead_or_tied) / 2) * ranked.gold
        return behind.sum(1) / (ranked.gold.sum(1) * negatives[:, -1])


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(Plausibility):
    """Mean precision at the marked units; units of equal score enter together (step-wise, not interpolated).

    Examples:
        Precision 1 at "good" and 2/3 at "fine".

        >>> judge("average_precision", "good film fine cast", [3, 2, 1, 0], rationale=[[0, 4], [10, 14]])
        0.833
    """

    card: ClassVar = MetricCard(
        name="average_precision", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(0, 1), needs_rationale=True, label="Average precision",
        equation=r"\frac{1}{G} \sum_{g} \text{precision at marked unit } g",
        computed="Words are ordered by the size of their scores; at each of the G marked words, precision is the share "
        "of marked words among all words down to it. The value is the mean of these. Words of equal score enter "
        "together.",
        read="1: all marked words come first. By chance it is near the share of marked words, so it is low if little "
        "is marked. Undefined (NaN) if nothing, or everything, is marked.",
        use="Few words are marked, and the top of the order matters.",
        avoid="Do not use it to compare datasets with different shares of marked words; use `rationale_auc`.",
    )  # fmt: skip

    def value(self, ranked: RankedUnits) -> Tensor:
        """Return the mean over marked units of the precision at the end of their group of equal scores: [B]."""
        _, last = _find_ties(ranked.scores)
        precision = _count_before(ranked.gold).gather(1, last + 1) / (last + 1)
        return (precision * ranked.gold).sum(1) / ranked.gold.sum(1)


@dataclass(frozen=True, kw_only=True)
class Auprc(Plausibility):
    """Area under the precision-recall curve by the trapezoidal rule, as ERASER's scorer computes it.

    Examples:
        ½ · 1 up to "good", then ½ · (½ + 2/3) / 2 to "fine".

        >>> judge("auprc", "good film fine cast", [3, 2, 1, 0], rationale=[[0, 4], [10, 14]])
        0.792
    """

    card: ClassVar = MetricCard(
        name="auprc", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(0, 1),
        needs_rationale=True, label="AUPRC",
        equation=r"\sum_k (R_k - R_{k-1}) \, (P_k + P_{k-1}) / 2",
        computed="Words are ordered by the size of their scores. Precision P and recall R of the first words are "
        "points of a curve that begins at P = 1, R = 0; words of equal score enter together. The value is the area "
        "under straight lines between the points.",
        read="1: all marked words come first. By chance it is near the share of marked words. Undefined (NaN) if "
        "nothing, or everything, is marked.",
        use="You compare with AUPRC in results of ERASER.",
        avoid="Do not use it otherwise: straight lines between points are too optimistic (see `average_precision`).",
    )  # fmt: skip

    def value(self, ranked: RankedUnits) -> Tensor:
        """Return the area [B] under the lines between the ends of the groups of equal scores."""
        _, last = _find_ties(ranked.scores)
        hits = _count_before(ranked.gold).gather(1, last + 1)
        precision, recall = hits / (last + 1), hits / ranked.gold.sum(1, keepdim=True)
        earlier = torch.nn.functional.pad(precision, (1, 0), value=1.0)[:, :-1]
        steps = torch.nn.functional.pad(recall, (1, 0)).diff(dim=1)
        return (steps * (precision + earlier) / 2).sum(1)


@dataclass(frozen=True, kw_only=True)
class RecallAtK(Plausibility):
    """Share of the G marked units that are among the first G units; ties keep the order of the text.

    Examples:
        Of the first two words, only "good" is marked.

        >>> judge("recall_at_k", "good film fine cast", [3, 2, 1, 0], rationale=[[0, 4], [10, 14]])
        0.5
    """

    card: ClassVar = MetricCard(
        name="recall_at_k", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(0, 1),
        needs_rationale=True, label="Recall@k",
        equation=r"\frac{|\text{top}_G \cap \text{marked}|}{G}",
        computed="If people marked G words, the share of them among the G words with the largest scores; of equal "
        "scores the first in the text counts.",
        read="0.6: of ten marked words, six are among the first ten. By chance it is the share of words that are "
        "marked. Undefined (NaN) if nothing, or everything, is marked.",
        use="You want a number that people understand at once.",
        avoid="Do not use it when many scores are equal: the order of the text then decides.",
    )  # fmt: skip

    def value(self, ranked: RankedUnits) -> Tensor:
        """Return the number of marked units among the first G, divided by G: [B]."""
        size = ranked.gold.sum(1)
        return _count_hits(ranked.gold, size) / size


@dataclass(frozen=True, kw_only=True)
class NeedleRank(Plausibility):
    """Rank of the first marked unit in the attribution's order, from 1; tied units share their mean rank.

    Examples:
        "film" comes first, then the marked "fine".

        >>> judge("needle_rank", "good film fine cast", [1, 3, 2, 0], rationale=[[0, 4], [10, 14]])
        2.0
    """

    card: ClassVar = MetricCard(
        name="needle_rank", family="plausibility", higher_is_better=False, paper="Hsieh et al. 2024",
        bounds=(1, None), needs_rationale=True,
        equation=r"r = 1 + |\{ i : s_i > s_{needle} \}|",
        computed="The rank, from 1, of the first marked unit when units are ordered by the size of their scores; units "
        "of equal score share their mean rank.",
        read="Lower is better. 1: the unit with the highest score is marked; among n units, one of them marked, chance "
        "gives (n + 1) / 2. Undefined (NaN) if nothing, or everything, is marked.",
        use="One source or sentence among many holds the answer and should be found.",
        avoid="Do not use it when several units are marked and all of them matter: only the first counts.",
    )  # fmt: skip

    def value(self, ranked: RankedUnits) -> Tensor:
        """Return the rank of the first marked unit: [B]; units of equal score share their mean rank."""
        first, last = _find_ties(ranked.scores)
        best = ranked.gold.long().argmax(1, keepdim=True)
        return 1 + (first.gather(1, best) + last.gather(1, best))[:, 0] / 2


@dataclass(frozen=True, kw_only=True)
class TokenF1(Plausibility):
    """F1 score of the first units as a set against the marked ones; ties keep the order of the text.

    `k`: number of first units, at most all. `fraction`: the fraction of the units that are the first, rounded up.
    Without both they are as many as were marked, and the value equals `recall_at_k`.

    Examples:
        One of the two first words is marked, and one of the two marked words is first.

        >>> judge("token_f1", "good film fine cast", [3, 2, 1, 0], rationale=[[0, 4], [10, 14]])
        0.5
    """

    k: int | None = None
    fraction: float | None = None
    card: ClassVar = MetricCard(
        name="token_f1", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(0, 1),
        needs_rationale=True, label="F1",
        equation=r"\frac{2 |\text{top}_k \cap \text{marked}|}{k + G}",
        computed="F1 of the k words with the largest scores, as a set, against the G marked words. k is G unless it is "
        "given; the value is then that of `recall_at_k`.",
        read="From 0 to 1. 1: the selected words are exactly the marked words. Undefined (NaN) if nothing, or "
        "everything, is marked.",
        use="You compare with results of ERASER.",
        avoid="Do not use it with a `k` that was chosen after looking at the results.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction is not None:
            check_fractions((self.fraction,))
        if self.k is not None and (self.k < 1 or self.fraction is not None):
            raise ExpoundError(f"{self.name} takes k, at least 1, or a fraction, got {self.k} and {self.fraction}")

    def value(self, ranked: RankedUnits) -> Tensor:
        """Return 2 · hits / (selected + marked): [B]."""
        hits, size = self.count_hits(ranked)
        return 2 * hits / size

    def count_hits(self, ranked: RankedUnits) -> tuple[Tensor, Tensor]:
        """Return the number [B] of selected units that are marked, and the sum [B] of selected and marked units."""
        size = self.count_selected(ranked)
        return _count_hits(ranked.gold, size), size + ranked.gold.sum(1)

    def count_selected(self, ranked: RankedUnits) -> Tensor:
        """Return the number [B] of selected units."""
        count = ranked.candidates.sum(1)
        if self.fraction is not None:
            return fractions_to_counts(count, (self.fraction,))[0]
        return ranked.gold.sum(1) if self.k is None else count.clamp(max=self.k)


@dataclass(frozen=True, kw_only=True)
class IouF1(TokenF1):
    """F1 of spans: runs of first units that overlap with a run of marked units by at least half of their union.

    Examples:
        "good film" covers the marked "good" by half: precision 1, recall ½.

        >>> judge("iou_f1", "good film fine cast", [3, 2, 1, 0], rationale=[[0, 4], [10, 14]])
        0.667

    Args:
        k: the number of first units, as for `token_f1`; also `fraction`.
        min_iou: the smallest share of the union.
    """

    min_iou: float = 0.5
    card: ClassVar = MetricCard(
        name="iou_f1", family="plausibility", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(0, 1),
        needs_rationale=True, label="IOU-F1",
        equation=r"2 \, |\{p : \max_t |p \cap t| / |p \cup t| \ge \tfrac{1}{2}\}| / (|P| + |T|)",
        computed="The k words with the largest scores (k: as many as were marked, unless it is given) and the marked "
        "words are cut into spans of neighboring words, P and T. A span of P counts if it shares at least half of "
        "the union with a span of T (`min_iou`). `Metric.evaluate` also returns `iou_precision`, the share of "
        "spans of P that count, and `iou_recall`, their number divided by that of T.",
        read="1: every selected span matches a marked one. The IOU-F1 of ERASER's scorer for a dataset is F1 of the "
        "mean precision and the mean recall. Undefined (NaN) if nothing, or everything, is marked.",
        use="You compare with results of ERASER, and people marked phrases.",
        avoid="Do not use it for methods that score single words: a phrase with one word missing becomes two spans.",
    )  # fmt: skip

    def values(self, ranked: RankedUnits) -> dict[str, Tensor]:
        """Return F1, precision and recall of spans, each [B]."""
        hits, selected, marked = (ranked.scores.new_zeros(len(ranked.gold)) for _ in range(3))
        sizes = self.count_selected(ranked).tolist()
        for row, (size, places) in enumerate(zip(sizes, ranked.places.tolist(), strict=True)):
            chosen = set(places[: int(size)])
            gold = {place for place, is_gold in zip(places, ranked.gold[row].tolist(), strict=True) if is_gold}
            width = len(places)
            spans = find_runs(place in chosen for place in range(width))
            truths = find_runs(place in gold for place in range(width))
            selected[row], marked[row] = len(spans), len(truths)
            for span in spans:
                hits[row] += any(_overlap(span, truth) >= self.min_iou for truth in truths)
        recall = hits / marked.clamp(min=1)
        return {"iou_f1": 2 * hits / (selected + marked), "iou_precision": hits / selected, "iou_recall": recall}


def _overlap(one: list[int], other: list[int]) -> float:
    """Return the intersection of two spans [start, end) divided by their union."""
    shared = max(0, min(one[1], other[1]) - max(one[0], other[0]))
    return shared / (one[1] - one[0] + other[1] - other[0] - shared)


def _pool_units(unit: Tensor, scores: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of units, whether they are marked, and whether they exist [B, U], from positions [B, L]."""
    index, inside = unit.clamp(min=0), unit >= 0
    zeros = scores.new_zeros(len(unit), int(index.max()) + 1)

    def add_up(values: Tensor) -> Tensor:
        return zeros.scatter_add(1, index, (values * inside).to(zeros))

    return add_up(scores), add_up(gold) > 0, add_up(inside) > 0


def _find_ties(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last place of the group of equal scores around each place of sorted scores: [B, U]."""
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    changes = scores[:, 1:] != scores[:, :-1]
    edge = torch.ones_like(scores[:, :1], dtype=torch.bool)
    first = places.where(torch.cat([edge, changes], 1), 0).cummax(1).values
    # The last place is the first one read from the right.
    last = places.where(torch.cat([changes, edge], 1), scores.shape[1] - 1).flip(1).cummin(1).values.flip(1)
    return first, last


def _count_before(mask: Tensor) -> Tensor:
    """Return how many entries of a mask [B, U] are set before each place, and in total last: [B, U + 1] float64."""
    return torch.nn.functional.pad(mask.cumsum(1), (1, 0)).double()


def _count_hits(gold: Tensor, size: Tensor) -> Tensor:
    """Return the number of marked units among the first `size` [B]: [B]."""
    return _count_before(gold).gather(1, size[:, None]).squeeze(1)
