"""SolvEx: ranks from the best order of removing words, found by beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.base import Explainer
from expound.explainers.perturbation.beam import Beam, run_beams
from expound.explainers.perturbation.coalitions import coalition_values
from expound.explainers.units import number_units, spread
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod

SearchCriterion = Literal["comprehensiveness", "sufficiency", "difference", "log_odds"]
NOTHING = 1e-6
DIGITS = 6


@dataclass(frozen=True)
class Solvex(Explainer):
    """Ranks from the best order of removing units (Zhou and Shah 2023). Signed.

    The best order maximizes the sum of the criterion over its beginnings R: `comprehensiveness` p(x) − p(x∖R),
    `sufficiency` p(R) − p(x), `difference` p(R) − p(x∖R), or `log_odds` log p(x) − log p(x∖R). Of n units, the one
    removed t-th gets n − t. All scores are then shifted by the same amount, so that as many signs as possible agree
    with the drops when single units are removed. If the beam holds all sets, the order is optimal. Differences below a
    millionth count as ties, which the first unit wins.

    Examples:
        >>> explain("solvex", "good fine film")  # ranks 3, 2, 1, shifted by ½
        [2.5, 1.5, 0.5]

    Args:
        criterion: `comprehensiveness`, `sufficiency`, `difference` or `log_odds`.
        beam: number of orders kept at each length, the best one of each set of units.
        unit: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's score is shared equally by its
            tokens.
        perturbation: `remove`, `mask`, `pad`, `zero` or `attend`; default: `mask` for `log_odds`, else `remove`.
    """

    criterion: SearchCriterion = "difference"
    beam: int = 50
    unit: UnitName = "word"
    perturbation: RemovalMethod | None = None
    card: ClassVar = MethodCard(
        name="solvex", label="SolvEx", family="search", signed=True, cost="≤ beam · words² F",
        paper="Zhou and Shah 2023", unit="rank",
        equation=r"\max_\pi \sum_t [ p(\pi_{\le t}) - p(x \setminus \pi_{\le t}) ] \text{ by beam search}",
        use="Use it as a ceiling: it shows how good an order of the words can be by a metric.",
        avoid="Do not use it as evidence that a method is good by the metric that it optimizes.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam < 1:
            raise ExpoundError(f"solvex needs a beam of at least 1, got {self.beam}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: at most one per extension of a kept order and per side of the objective."""
        sides = 2 if self.criterion == "difference" else 1
        extensions = sum(min(self.beam, 2.0 ** min(length, 60)) * (length - depth) for depth in range(length))
        return min(sides * extensions + length, 2.0 ** min(length, 1000)) + 1.0, 0.0

    def cost(self, length: int) -> float:
        """Return half of the passes: half of the units are removed on average."""
        return self.passes(length)[0] / 2

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Return shifted ranks [B, L]; the beams of all examples grow together, so that their inputs share passes."""
        if self.criterion == "log_odds" and model.task.predicts_number:
            raise ExpoundError("log_odds needs probabilities, and a regression has none: choose another criterion")
        unit = number_units(batch, self.unit)
        beams = [Beam(int(count) + 1, self.beam) for count in unit.max(1).values]
        width = max(1, *(beam.count for beam in beams))
        with model.cache_perturbed():
            # Rounded: differences of float noise would break ties differently in other batches.
            run_beams(beams, lambda removed: self._gains(model, batch, target, removed, unit).round(DIGITS))
            drops = self._drops(model, batch, target, unit, width)
        ranks = [_shift_ranks(beam.ranks(), drop[: beam.count]) for beam, drop in zip(beams, drops, strict=True)]
        grid = torch.zeros(len(batch), width, dtype=torch.promote_types(model.dtype, torch.float32))
        for row, rank in zip(grid, ranks, strict=True):
            row[: len(rank)] = torch.from_numpy(rank)
        return spread(grid.to(batch.device), unit)

    def _gains(
        self, model: ExplainedModel, batch: Batch, target: Tensor, removed: Tensor, unit: Tensor
    ) -> NDArray[np.float64]:
        """Return the objective [B, M] of removing units [M, B, U], up to a constant per example."""
        removed = removed.to(batch.device)
        if self.criterion == "sufficiency":
            return self._answers(model, batch, target, removed, unit)
        # p(x) is the same for all orders of an example, so it is left out.
        without = self._answers(model, batch, target, ~removed, unit)
        if self.criterion == "log_odds":
            gains: NDArray[np.float64] = -np.log(np.maximum(without, np.finfo(np.float32).tiny))
            return gains
        if self.criterion == "comprehensiveness":
            return -without
        return self._answers(model, batch, target, removed, unit) - without

    def _answers(
        self, model: ExplainedModel, batch: Batch, target: Tensor, present: Tensor, unit: Tensor
    ) -> NDArray[np.float64]:
        perturbation = self.perturbation or ("mask" if self.criterion == "log_odds" else "remove")
        values = coalition_values(model, batch, target, present, unit, perturbation)
        return values.T.double().cpu().numpy()

    def _drops(
        self, model: ExplainedModel, batch: Batch, target: Tensor, unit: Tensor, width: int
    ) -> NDArray[np.float64]:
        """Return p(x) − p(x without the unit) for each unit: [B, U]."""
        removed = torch.cat([torch.zeros(1, width), torch.eye(width)]).bool()[:, None].expand(-1, len(batch), -1)
        answers = self._answers(model, batch, target, ~removed.to(batch.device), unit)
        drops: NDArray[np.float64] = answers[:, :1] - answers[:, 1:]
        return drops


def _shift_ranks(ranks: NDArray[np.float64], drops: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks minus o − ½, for the smallest o with which the most signs agree with the drops' signs."""
    signs = np.sign(np.where(np.abs(drops) < NOTHING, 0.0, drops))
    shifts = np.arange(len(ranks) + 1) - 0.5
    agreeing = (np.sign(ranks - shifts[:, None]) == signs).sum(1)
    shifted: NDArray[np.float64] = ranks - shifts[agreeing.argmax()]
    return shifted
