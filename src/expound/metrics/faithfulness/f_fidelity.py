"""F-fidelity: erasure measured on a copy of the model that was fine-tuned on inputs with random masks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.explainers.seeding import draw_numbers
from expound.metrics.faithfulness.unit_order import UnitMetric, UnitOrder
from expound.metrics.ranking import check_fractions, fractions_to_counts
from expound.models import Batch, ExplainedModel, load
from expound.models.windowed import WindowedModel


@dataclass(frozen=True, kw_only=True)
class FFidelity(UnitMetric):
    """Mean drop of the copy's p when a random part of the top is removed, over fractions and draws (Zheng et al. 2025).

    This is FFid+ of the paper. The copy is the explained model fine-tuned on inputs with random masks, so that inputs
    with missing words are not out of distribution. Only a part of the top, and never much of the input, is removed, so
    that the positions of the gaps carry no information.

    Args:
        copy: the copy's folder, as `expound train baseline --model MODEL --masked-share 1` writes it.
        fractions: shares of the units that count as the top.
        removed_fraction: share of the top that is removed; see `max_fraction`.
        max_fraction: at most this share of all units is removed, and at least one unit.
        n_samples: random parts for each fraction.
        seed: with the example's content it determines the draws, which are the same for all methods.
    """

    copy: str = ""
    fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    removed_fraction: float = 0.5
    max_fraction: float = 0.1
    n_samples: int = 8
    seed: int = 0
    positive_params: ClassVar = ("n_samples",)
    card: ClassVar = MetricCard(
        name="f_fidelity", label="F-fidelity", family="faithfulness", higher_is_better=True, paper="Zheng et al. 2025",
        bounds=(-1, 1),
        equation=r"\mathbb{E} [ \tilde{p}(x) - \tilde{p}(x \setminus \text{part of top}_k) ]",
        computed="A copy of the model that was fine-tuned on texts with random masks is asked (p̃), so that texts with "
        "gaps are familiar to it. Of the top 10, 20, 30, 40 and 50 % of the words (`fractions`), a random half "
        "(`removed_fraction`), but no more than a tenth of the text (`max_fraction`), is masked; the value is the "
        "mean drop of the probability over fractions and 8 draws each. {units} {masked}",
        read="0.05 means that the copy's probability fell by 5 points on average. It is smaller than "
        "`aopc_comprehensiveness`, since less is masked. {control}",
        use="You doubt `aopc_comprehensiveness` because texts with gaps are unusual for the model.",
        avoid="Do not use it when you cannot fine-tune a copy of the model (`expound train baseline --model MODEL "
        "--masked-share 1`).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions((*self.fractions, self.removed_fraction, self.max_fraction))

    def supports(self, model: ExplainedModel) -> bool:
        """Return whether a copy was given."""
        return bool(self.copy)

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`. Raises ExpoundError without a matching copy."""
        copy = self.load_copy(model)
        removed = self.draw_removed(batch, self.order_units(batch, attribution))
        with copy.cache_perturbed():
            answers = self.probability(copy, batch, target, torch.cat([torch.ones_like(removed[:1]), ~removed]))
        return {self.name: (answers[0] - answers[1:]).mean(0).float()}

    def load_copy(self, model: ExplainedModel) -> ExplainedModel:
        """Return the copy on the model's device. Raises ExpoundError if it is missing or has other labels."""
        if not self.copy:
            raise ExpoundError(
                "f_fidelity needs a copy fine-tuned on random masks: train one by `expound train baseline --model "
                "MODEL --masked-share 1 …`, and give its folder as copy="
            )
        copy = _load_cached(str(Path(self.copy).expanduser().resolve()), str(model.device))
        if copy.labels != model.labels:
            raise ExpoundError(f"{self.copy} is no copy of the model: its labels are {copy.labels}, not {model.labels}")
        if not isinstance(model, WindowedModel):
            return copy
        return WindowedModel(copy, model.stride)

    def draw_removed(self, batch: Batch, order: UnitOrder) -> Tensor:
        """Return the removed units of each fraction and draw: [K · n_samples, B, U]."""
        top = fractions_to_counts(order.counts, self.fractions)
        part_of_top = fractions_to_counts(top.flatten(), (self.removed_fraction,)).view_as(top)
        count = torch.minimum(part_of_top, fractions_to_counts(order.counts, (self.max_fraction,)))
        # One number per unit, not per top unit: every method removes by the same draws.
        noise = draw_numbers(batch, order.counts, self.n_samples, self.seed)
        in_top = order.first(top)[:, None]
        candidates = noise.masked_fill(~in_top, torch.inf)
        # The `count` lowest numbers of the top are a uniform sample of it without replacement.
        drawn = candidates.argsort(-1).argsort(-1) < count[:, None, :, None]
        return (drawn & in_top).flatten(0, 1)


@lru_cache(maxsize=2)
def _load_cached(folder: str, device: str) -> ExplainedModel:
    return load(folder, device=device)
