"""Does the model need what the attribution puts first, and is it enough? See `erasure` for the common rules."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.metrics.erasure import AtBudget, OverBudgets, Probability, drops, with_all
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbed import How

ERASER, AML = "DeYoung et al. 2020", "Barkan et al. 2024"
LOWEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(AtBudget):
    """p(x) − p(x without the top)."""

    card: ClassVar = MetricCard("comprehensiveness", "faithfulness", True, ERASER, (-1, 1))

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The drop of p at the only budget: [1, B]."""
        return drops(p, ~chosen)


@dataclass(frozen=True, kw_only=True)
class Sufficiency(AtBudget):
    """p(x) − p(the top alone)."""

    card: ClassVar = MetricCard("sufficiency", "faithfulness", False, ERASER, (-1, 1))

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The drop of p at the only budget: [1, B]."""
        return drops(p, chosen)


@dataclass(frozen=True, kw_only=True)
class AopcComprehensiveness(OverBudgets):
    """Comprehensiveness, as a mean over several budgets."""

    card: ClassVar = MetricCard("aopc_comprehensiveness", "faithfulness", True, ERASER, (-1, 1))

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The drop at each budget."""
        return drops(p, ~chosen)


@dataclass(frozen=True, kw_only=True)
class AopcSufficiency(OverBudgets):
    """Sufficiency, as a mean over several budgets."""

    card: ClassVar = MetricCard("aopc_sufficiency", "faithfulness", False, ERASER, (-1, 1))

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The drop at each budget."""
        return drops(p, chosen)


@dataclass(frozen=True, kw_only=True)
class Difference(AtBudget):
    """Comprehensiveness minus sufficiency: p(the top alone) − p(x without the top)."""

    card: ClassVar = MetricCard("difference", "faithfulness", True, AML, (-1, 1))

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """Comprehensiveness minus sufficiency at the only budget: [1, B]."""
        return differences(p, chosen)


@dataclass(frozen=True, kw_only=True)
class AopcDifference(OverBudgets):
    """Comprehensiveness minus sufficiency over several budgets."""

    card: ClassVar = MetricCard("aopc_difference", "faithfulness", True, AML, (-1, 1))

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The difference at each budget."""
        return differences(p, chosen)


@dataclass(frozen=True, kw_only=True)
class LogOdds(AtBudget):
    """log p(x with the top replaced) − log p(x), with p never below 1e-12 (Shrikumar et al. 2017)."""

    how: How = "mask"
    card: ClassVar = MetricCard("log_odds", "faithfulness", False, "Shrikumar et al. 2017", (log(LOWEST), -log(LOWEST)))

    def points(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> Tensor:
        """[1, B]; a regression is an ExegeteError."""
        if model.task.name == "regression":
            raise ExegeteError("log_odds compares probabilities, and a regression has none: use comprehensiveness")
        return super().points(model, batch, attribution, target)

    def applies(self, model: ExplainedModel) -> bool:
        """Whether the model's task has probabilities: all but regressions."""
        return model.task.name != "regression"

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The change of the logarithm."""
        logarithm = with_all(p, ~chosen).clamp(min=LOWEST).log()
        return logarithm[1:] - logarithm[0]


def differences(p: Probability, chosen: Tensor) -> Tensor:
    """[K, B] p(the top alone) − p(x without the top)."""
    alone, without = p(torch.cat([chosen, ~chosen])).chunk(2)
    return alone - without
