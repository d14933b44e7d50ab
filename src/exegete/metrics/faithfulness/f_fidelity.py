"""Erasure judged by a copy of the model that knows inputs with words missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.explainers.seeding import example_generators
from exegete.metrics.faithfulness.unit_order import UnitMetric, UnitOrder
from exegete.metrics.ranking import check_fractions, fractions_to_counts
from exegete.models import Batch, ExplainedModel, load
from exegete.models.windowed import WindowedModel


@dataclass(frozen=True, kw_only=True)
class FFidelity(UnitMetric):
    """Mean drop of the copy's p when a random part of the top goes, over budgets and draws (Zheng et al. 2025, FFid+).

    The copy is the explained model fine-tuned on inputs with random masks, so that an input without some words is none
    it has never seen; as only a part of the top goes, and never much of the input, where holes are tells it nothing.

    Args:
        copy: the copy's folder, as `exegete train baseline --model MODEL --masked-share 1` writes it.
        budgets: shares of the units that count as the top.
        alpha: share of the top that goes; see `beta`.
        beta: at most this share of all units goes, and at least one unit.
        draws: random parts for each budget.
        seed: with the example's own content it decides the draws, which are the same for all methods.
    """

    copy: str = ""
    budgets: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    alpha: float = 0.5
    beta: float = 0.1
    draws: int = 8
    seed: int = 0
    positive_params: ClassVar = ("draws",)
    card: ClassVar = MetricCard(
        name="f_fidelity",
        label="F-fidelity",
        family="faithfulness",
        higher_is_better=True,
        paper="Zheng et al. 2025",
        bounds=(-1, 1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions((*self.budgets, self.alpha, self.beta))

    def supports(self, model: ExplainedModel) -> bool:
        """Where there is a copy."""
        return bool(self.copy)

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; no copy, or one with other outputs, is an ExegeteError."""
        judge = self.load_copy(model)
        ordered = self.order_units(batch, attribution)
        removed = self.removed(batch, ordered)
        with judge.cache_perturbed():
            answers = self.probability(judge, batch, target, torch.cat([torch.ones_like(removed[:1]), ~removed]))
        return {self.name: (answers[0] - answers[1:]).mean(0).float()}

    def load_copy(self, model: ExplainedModel) -> ExplainedModel:
        """The copy, on the model's device."""
        if not self.copy:
            raise ExegeteError(
                "f_fidelity needs a copy fine-tuned on random masks: train one by `exegete train baseline --model "
                "MODEL --masked-share 1 …`, and give its folder as copy="
            )
        judge = _load_cached(str(Path(self.copy).expanduser().resolve()), str(model.device))
        if judge.labels != model.labels:
            raise ExegeteError(f"{self.copy} is no copy of the model: it answers {judge.labels}, not {model.labels}")
        return WindowedModel(judge, model.stride) if isinstance(model, WindowedModel) else judge

    def removed(self, batch: Batch, ordered: UnitOrder) -> Tensor:
        """[K · draws, B, U] The units that go."""
        top = fractions_to_counts(ordered.counts, self.budgets)
        most = torch.minimum(
            fractions_to_counts(top.flatten(), (self.alpha,)).view_as(top),
            fractions_to_counts(ordered.counts, (self.beta,)),
        )
        dice = torch.full((self.draws, *ordered.place.shape), torch.inf, dtype=torch.float64)
        for row, (count, random) in enumerate(
            zip(ordered.counts.tolist(), example_generators(batch, self.seed), strict=True)
        ):
            dice[:, row, :count] = torch.from_numpy(random.random((self.draws, count)))
        chosen = ordered.first(top)[:, None]
        rolled = dice.to(batch.device).masked_fill(~chosen, torch.inf)
        lowest = rolled.argsort(-1).argsort(-1) < most[:, None, :, None]
        return (lowest & chosen).flatten(0, 1)


@lru_cache(maxsize=2)
def _load_cached(folder: str, device: str) -> ExplainedModel:
    return load(folder, device=device)
