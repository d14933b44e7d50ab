"""Area over the perturbation curve as a share of what the best and the worst order of the same units reach.

With Δ(S) = p(x) − p(x without S), an order of n units scores AOPC = (1/n) Σ_k Δ(its first k). NAOPC = (AOPC − lower) /
(upper − lower), the limits over all orders of the same units, taken away in the same way (Edin et al. 2025). Limits are
exact to `EXACT` units; a beam finds those of more, and as it may miss the best order, values a little outside [0, 1]
are left as they are. NaN where the limits are equal: all orders are then the same.
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

from exegete.data.cards import MetricCard
from exegete.explainers.perturbation.beam import Beam, run_beams
from exegete.explainers.perturbation.coalitions import coalition_values
from exegete.metrics.faithfulness.unit_order import UnitMetric
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.inputs import Deletion
from exegete.models.perturbation.run import RemovalMethod

EXACT = 10
NOTHING = 1e-9
Floats = NDArray[np.float64]
Drops = Callable[[Tensor], Floats]
"""Δ [B, M] of taking units [M, B, U] away."""


@dataclass(frozen=True, kw_only=True)
class Naopc(UnitMetric):
    """The share of the way from the worst order of the units to the best one.

    `beam`: orders kept at every length where there are more than ten units; about 2 · beam · units² / 2 passes.
    """

    beam: int = 5
    positive_params: ClassVar = ("beam",)
    lowest_first: ClassVar[bool] = False

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; NaN where all orders score the same."""
        ordered = self.order_units(batch, -attribution if self.lowest_first else attribution)
        sizes = torch.arange(ordered.place.shape[1] + 1, device=batch.device)[:, None]
        answers = self.probability(model, batch, target, ~ordered.first(sizes))
        drops = (answers[0] - answers) * (sizes <= ordered.counts)
        lower, upper = self.limits(model, batch, target).unbind(1)
        share = (drops.sum(0) / ordered.counts.clamp(min=1) - lower) / (upper - lower)
        return {self.name: share.masked_fill(upper - lower < NOTHING, torch.nan).float()}

    def limits(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """[B, 2] The lowest and the highest AOPC over all orders, in float64.

        Inside `model.cache_perturbed()` an example's are found once, for all methods and metrics that ask.
        """
        with model.cache_perturbed():
            memory = model.perturbation_cache
            assert memory is not None
            names = self._memory_keys(model, batch, target)
            new = list({name: row for row, name in enumerate(names) if name not in memory}.values())
            if new:
                found = self._compute_limits(model, batch.select(new), target[new])
                memory.update(zip((names[row] for row in new), found, strict=True))
            return torch.stack([memory[name] for name in names])

    def _memory_keys(self, model: ExplainedModel, batch: Batch, target: Tensor) -> list[bytes]:
        """A name for each row; where names are equal, limits are."""
        inputs = Deletion(model, batch, batch.attended[None].clone()).keys()
        start = batch.attended.long().argmax(1)
        targets = (target - start[:, None] if target.ndim > 1 else target).cpu().numpy()
        unit, attended = self.units(batch).cpu().numpy(), batch.attended.cpu().numpy()
        head = f"limits {self.how} {self.beam} {model.task.output}".encode()
        return [
            b"|".join((head, row[row >= 0].tobytes(), own[there].tobytes(), answer.tobytes()))
            for row, own, there, answer in zip(inputs, unit, attended, targets, strict=True)
        ]

    def _compute_limits(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """[B, 2] The limits of each example, by all sets of its units or by two beams."""
        unit = self.units(batch)
        few = unit.amax(1) < EXACT
        limits = torch.zeros(len(batch), 2, dtype=torch.float64, device=batch.device)
        for rows, find in (
            (few.nonzero().flatten(), exact_limits),
            ((~few).nonzero().flatten(), partial(beam_limits, beam=self.beam)),
        ):
            if len(rows):
                drops = partial(_drops, model, batch.select(rows), target[rows], unit[rows], self.how)
                limits[rows] = torch.from_numpy(find(drops, (unit[rows].amax(1) + 1).tolist())).to(limits)
        return limits


@dataclass(frozen=True, kw_only=True)
class NaopcComprehensiveness(Naopc):
    """Units go by falling importance: 1 where no other order makes the probability fall as early."""

    card: ClassVar = MetricCard(
        name="naopc_comprehensiveness",
        label="Comprehensiveness (NAOPC)",
        family="faithfulness",
        higher_is_better=True,
        paper="Edin et al. 2025",
    )


@dataclass(frozen=True, kw_only=True)
class NaopcSufficiency(Naopc):
    """Units go by rising importance: 0 where no other order keeps the probability as long."""

    card: ClassVar = MetricCard(
        name="naopc_sufficiency",
        label="Sufficiency (NAOPC)",
        family="faithfulness",
        higher_is_better=False,
        paper="Edin et al. 2025",
    )
    lowest_first: ClassVar = True


def exact_limits(drops: Drops, counts: Sequence[int]) -> Floats:
    """[B, 2] The lowest and the highest AOPC of examples of `counts` units, from Δ of every set of units."""
    values = drops(torch.from_numpy(subsets(max(1, *counts)))[:, None].expand(-1, len(counts), -1))
    return np.array([exact_extremes(own[: 1 << count]) for own, count in zip(values, counts, strict=True)])


def beam_limits(drops: Drops, counts: Sequence[int], beam: int) -> Floats:
    """[B, 2] As `exact_limits`, where a beam of the worst and one of the best orders end; at least one unit each."""
    found = []
    for sign in (-1.0, 1.0):
        beams = [Beam(count, beam) for count in counts]
        run_beams(beams, partial(_signed, drops, sign))
        found.append([sign * each.total_gain.max() for each in beams])
    every = drops(torch.ones(1, len(counts), max(counts), dtype=torch.bool))
    limits: Floats = (np.array(found).T + every) / np.array(counts)[:, None]
    return limits


def exact_extremes(drops: Floats) -> tuple[float, float]:
    """The lowest and the highest AOPC over all orders, from Δ [2^n] of every set as `subsets` numbers them.

    best(S) = Δ(S) + max over i ∈ S of best(S ∖ i), set by set in the order of their sizes.
    """
    count = len(drops).bit_length() - 1
    if not count:
        return 0.0, 0.0
    size, numbers = subsets(count).sum(1), np.arange(len(drops))
    least, most = np.zeros_like(drops), np.zeros_like(drops)
    for depth in range(1, count + 1):
        sets = numbers[size == depth]
        smaller = sets[:, None] & ~(1 << np.arange(count))
        inside = smaller != sets[:, None]
        least[sets] = drops[sets] + np.where(inside, least[smaller], np.inf).min(1)
        most[sets] = drops[sets] + np.where(inside, most[smaller], -np.inf).max(1)
    return float(least[-1] / count), float(most[-1] / count)


def subsets(count: int) -> NDArray[np.bool_]:
    """[2^count, count] Every set of units; set s holds unit i where bit i of s is set."""
    return (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(np.bool_)


def _signed(drops: Drops, sign: float, removed: Tensor) -> Floats:
    return sign * drops(removed)


def _drops(
    model: ExplainedModel, batch: Batch, target: Tensor, unit: Tensor, how: RemovalMethod, removed: Tensor
) -> Floats:
    """[B, M] Δ of taking units [M, B, U] away."""
    present = torch.cat([torch.ones_like(removed[:1]), ~removed]).to(batch.device)
    values = coalition_values(model, batch, target, present, unit, how).double().cpu().numpy()
    found: Floats = values[:1].T - values[1:].T
    return found
