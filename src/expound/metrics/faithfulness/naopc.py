"""Normalized AOPC: the area over the perturbation curve relative to the best and the worst order of the same units.

With Δ(S) = p(x) − p(x without S), an order of n units scores AOPC = (1/n) Σ_k Δ(its first k). NAOPC = (AOPC − lower) /
(upper − lower), with the limits over all orders of the same units, removed in the same way (Edin et al. 2025). The
limits are exact for up to `EXACT` units. For more units a beam search finds them; it may miss the best order, so values
slightly outside [0, 1] are possible and are not clipped. The value is NaN if the limits are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MetricCard
from expound.explainers.perturbation.beam import Beam, run_beams
from expound.explainers.perturbation.coalitions import all_subsets, coalition_values
from expound.metrics.faithfulness.unit_order import UnitMetric
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import Deletion, RemovalMethod

EXACT = 10
NOTHING = 1e-9
Floats = NDArray[np.float64]
Drops = Callable[[Tensor], Floats]
"""A function from removed units [M, B, U] to the drops Δ [B, M]."""


@dataclass(frozen=True, kw_only=True)
class Naopc(UnitMetric):
    """Position of the method's AOPC between the worst and the best order's AOPC.

    `beam`: number of orders kept at each length if there are more than ten units; takes about 2 · beam · units² / 2
    passes.
    """

    beam: int = 5
    positive_params: ClassVar = ("beam",)
    lowest_first: ClassVar[bool] = False

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; NaN if all orders score the same."""
        if self.lowest_first:
            attribution = -attribution
        order = self.order_units(batch, attribution)
        sizes = torch.arange(order.place.shape[1] + 1, device=batch.device)[:, None]
        answers = self.probability(model, batch, target, ~order.first(sizes))
        drops = (answers[0] - answers) * (sizes <= order.counts)
        lower, upper = self.limits(model, batch, target).unbind(1)
        value = (drops.sum(0) / order.counts.clamp(min=1) - lower) / (upper - lower)
        return {self.name: value.masked_fill(upper - lower < NOTHING, torch.nan).float()}

    def limits(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return the lowest and the highest AOPC over all orders, in float64: [B, 2].

        Inside `model.cache_perturbed()` the limits of an example are computed once for all methods and metrics.
        """
        with model.cache_perturbed():
            cache = model.perturbation_cache
            assert cache is not None
            keys = self._cache_keys(model, batch, target)
            new_rows = {key: row for row, key in enumerate(keys) if key not in cache}
            if new_rows:
                rows = list(new_rows.values())
                cache.update(zip(new_rows, self._compute_limits(model, batch.select(rows), target[rows]), strict=True))
            return torch.stack([cache[key] for key in keys])

    def _cache_keys(self, model: ExplainedModel, batch: Batch, target: Tensor) -> list[bytes]:
        """Return a key for each row; rows with equal keys have equal limits."""
        inputs = Deletion(model, batch, batch.attended[None].clone()).compute_keys()
        # Targets that are positions count from the first real token, so that padding on the left does not change a key.
        start = batch.attended.long().argmax(1)
        if target.ndim > 1:
            target = target - start[:, None]
        targets = target.cpu().numpy()
        units, attended = self.units(batch).cpu().numpy(), batch.attended.cpu().numpy()
        head = f"limits {self.perturbation} {self.beam} {model.task.output}".encode()
        keys = []
        for ids, unit, real, row_target in zip(inputs, units, attended, targets, strict=True):
            keys.append(b"|".join((head, ids[ids >= 0].tobytes(), unit[real].tobytes(), row_target.tobytes())))
        return keys

    def _compute_limits(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return the limits [B, 2] of each example, from all sets of its units or from two beams."""
        unit = self.units(batch)
        few = unit.amax(1) < EXACT
        limits = torch.zeros(len(batch), 2, dtype=torch.float64, device=batch.device)
        searches = ((few, exact_limits), (~few, partial(beam_limits, beam=self.beam)))
        for selected, find_limits in searches:
            rows = selected.nonzero().flatten()
            if len(rows):
                drops = partial(_drops, model, batch.select(rows), target[rows], unit[rows], self.perturbation)
                found = find_limits(drops, (unit[rows].amax(1) + 1).tolist())
                limits[rows] = torch.from_numpy(found).to(limits)
        return limits


@dataclass(frozen=True, kw_only=True)
class NaopcComprehensiveness(Naopc):
    """NAOPC with units removed by decreasing score: 1 if no other order makes the probability fall as early.

    Examples:
        >>> judge("naopc_comprehensiveness", "good fine film", [1, 2, 0])  # AOPC .4, of .233 to .433
        0.833
    """

    card: ClassVar = MetricCard(
        name="naopc_comprehensiveness", label="Comprehensiveness (NAOPC)",
        family="faithfulness", higher_is_better=True, paper="Edin et al. 2025",
        equation=r"\frac{\text{AOPC} - \text{AOPC}^{-}}{\text{AOPC}^{+} - \text{AOPC}^{-}}",
        computed="Words are masked one after the other by decreasing score; AOPC is the mean drop of the probability "
        "over all these steps. It is put on the scale between the worst order of the same words, AOPC⁻, and the best, "
        "AOPC⁺. Both are exact for up to ten words; for more words, a beam search over orders (`beam`) finds good "
        "ones. {p} {units} {masked}",
        read="1: no order of the words makes the probability fall earlier; 0: no order makes it fall later. {control} "
        "Values slightly outside of 0 and 1 mean that the beam search missed the best or the worst order. Undefined "
        "(NaN) if every order gives the same.",
        use="You compare models, or texts, whose probabilities have different ranges.",
        avoid="Do not use it on texts of hundreds of words without `max_units`: the limits cost about `beam` · words² "
        "passes per text and are then not exact.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NaopcSufficiency(Naopc):
    """NAOPC with units removed by increasing score: 0 if no other order keeps the probability as long.

    Examples:
        >>> judge("naopc_sufficiency", "good fine film", [2, 1, 0])  # the best order
        0.0
    """

    card: ClassVar = MetricCard(
        name="naopc_sufficiency", label="Sufficiency (NAOPC)",
        family="faithfulness", higher_is_better=False, paper="Edin et al. 2025",
        equation=r"\frac{\text{AOPC} - \text{AOPC}^{-}}{\text{AOPC}^{+} - \text{AOPC}^{-}} "
        r"\text{ by increasing importance}",
        computed="As `naopc_comprehensiveness`, but words are masked by increasing score, the least important first. "
        "{p} {units} {masked}",
        read="Lower is better. 0: no order of the words keeps the probability longer; 1: no order makes it fall "
        "earlier. Undefined (NaN) if every order gives the same.",
        use="You compare models, or texts, whose probabilities have different ranges, and ask what is enough.",
        avoid="Do not use it on texts of hundreds of words without `max_units`: the limits cost about `beam` · words² "
        "passes per text and are then not exact.",
    )  # fmt: skip
    lowest_first: ClassVar = True


def exact_limits(drops: Drops, counts: Sequence[int]) -> Floats:
    """Return the lowest and the highest AOPC [B, 2] of examples with `counts` units, from every set's drop Δ."""
    values = drops(torch.from_numpy(all_subsets(max(1, *counts)))[:, None].expand(-1, len(counts), -1))
    return np.array([exact_extremes(row[: 1 << count]) for row, count in zip(values, counts, strict=True)])


def beam_limits(drops: Drops, counts: Sequence[int], beam: int) -> Floats:
    """Return estimated limits [B, 2] from one beam of the worst and one of the best orders; needs at least one unit."""
    ends = []
    for sign in (-1.0, 1.0):
        beams = [Beam(count, beam) for count in counts]
        run_beams(beams, partial(_scale_drops, drops, sign))
        ends.append([sign * search.total_gain.max() for search in beams])
    # Beams stop one unit before the end: the last step removes everything and is the same for all orders.
    everything = drops(torch.ones(1, len(counts), max(counts), dtype=torch.bool))
    limits: Floats = (np.array(ends).T + everything) / np.array(counts)[:, None]
    return limits


def exact_extremes(drops: Floats) -> tuple[float, float]:
    """Return the lowest and the highest AOPC over all orders, from the drop Δ [2^n] of every set, see `all_subsets`.

    best(S) = Δ(S) + max over i ∈ S of best(S ∖ i), computed for sets of increasing size: n · 2^n additions, where the
    paper's recursion over all orders takes n! steps.
    """
    count = len(drops).bit_length() - 1
    if not count:
        return 0.0, 0.0
    size, numbers = all_subsets(count).sum(1), np.arange(len(drops))
    least, most = np.zeros_like(drops), np.zeros_like(drops)
    for depth in range(1, count + 1):
        sets = numbers[size == depth]
        smaller = sets[:, None] & ~(1 << np.arange(count))
        # Clearing a bit that is not set leaves the set unchanged: such a unit is not in it.
        inside = smaller != sets[:, None]
        # The maximum starts at −∞: starting it at 0, as the reference code does, is wrong if all sums are negative.
        least[sets] = drops[sets] + np.where(inside, least[smaller], np.inf).min(1)
        most[sets] = drops[sets] + np.where(inside, most[smaller], -np.inf).max(1)
    return float(least[-1] / count), float(most[-1] / count)


def _scale_drops(drops: Drops, sign: float, removed: Tensor) -> Floats:
    return sign * drops(removed)


def _drops(
    model: ExplainedModel, batch: Batch, target: Tensor, unit: Tensor, perturbation: RemovalMethod, removed: Tensor
) -> Floats:
    """Return the drop Δ [B, M] of the probability when units [M, B, U] are removed."""
    present = torch.cat([torch.ones_like(removed[:1]), ~removed]).to(batch.device)
    values = coalition_values(model, batch, target, present, unit, perturbation).double().cpu().numpy()
    drops: Floats = values[:1].T - values[1:].T
    return drops
