"""Occlusion: the change of the answer when a word is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.data.unit_names import UnitName
from expound.explainers.base import OutputExplainer, TokenScores, select_target
from expound.explainers.units import number_units, spread
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.perturbation.run import RemovalMethod, run_perturbed


@dataclass(frozen=True)
class Occlusion(OutputExplainer):
    """Drop of the target's probability when a word (or another unit) is removed (Zeiler and Fergus 2014). Signed.

    For generated text it is the drop of the log-probability, unless `output` is given.

    `unit`: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's drop is shared equally by its
    tokens. `perturbation`: `mask`, `remove`, `pad`, `zero` or `attend`.
    """

    returns_logits: ClassVar[bool] = True
    unit: UnitName = "word"
    perturbation: RemovalMethod = "mask"
    card: ClassVar = MethodCard(
        name="occlusion", family="perturbation", signed=True, cost="(words + 1) F", paper="Zeiler and Fergus 2014",
        unit="drop in {output} when removed",
        equation=r"s_i = p_c(x) - p_c(x \setminus i)",
        use="Use it beside any other method: it needs only the model's answers, and everybody understands it.",
        avoid="Do not use it when several words say the same (removing one of them changes nothing), or for long "
        "texts.",
    )  # fmt: skip

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: at most one per unit, plus one for the full input; equal inputs are run once."""
        return length + 1.0, 0.0

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Return the drops p_c(x) − p_c(x without the unit), and the logits of the full input."""
        unit = number_units(batch, self.unit)
        # Row 0 keeps everything: the full input runs in the same passes, and its logits serve for the prediction.
        number = torch.arange(-1, max(int(unit.max()), 0) + 1, device=batch.device)
        keep = unit != number[:, None, None]
        keep[0] = True
        logits = run_perturbed(model, batch, keep, self.perturbation, model.perturbation_cache)
        explanations = []
        for target in targets:
            value = model.task.score_removal(logits, select_target(model, batch, target, logits[0]))
            explanations.append(TokenScores(spread((value[0] - value[1:]).T, unit), logits=logits[0]))
        return explanations
