"""Does the model need what the attribution puts first, and is it enough? See `erasure` for the common rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.metrics.faithfulness.erasure import AtBudget, Erasure, OverBudgets, Probability, evaluate_with_full_input
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod

LOWEST = 1e-12  # the bounds of log_odds are its logarithm


@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(AtBudget):
    """p(x) − p(x without the top)."""

    card: ClassVar = MetricCard(
        name="comprehensiveness", family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sufficiency(AtBudget):
    """p(x) − p(the top alone)."""

    card: ClassVar = MetricCard(
        name="sufficiency", family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020", bounds=(-1, 1)
    )
    keeps_top: ClassVar = True


@dataclass(frozen=True, kw_only=True)
class AopcComprehensiveness(OverBudgets):
    """Comprehensiveness, as a mean over several budgets."""

    card: ClassVar = MetricCard(
        name="aopc_comprehensiveness", label="Comprehensiveness (AOPC)",
        family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AopcSufficiency(OverBudgets):
    """Sufficiency, as a mean over several budgets."""

    card: ClassVar = MetricCard(
        name="aopc_sufficiency", label="Sufficiency (AOPC)",
        family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
    )  # fmt: skip
    keeps_top: ClassVar = True


class Differences(Erasure):
    """p(the top alone) − p(x without the top)."""

    def compute_effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """Comprehensiveness minus sufficiency at each budget."""
        keeps_top, without = p(torch.cat([chosen, ~chosen])).chunk(2)
        return keeps_top - without


@dataclass(frozen=True, kw_only=True)
class Difference(Differences, AtBudget):
    """Comprehensiveness minus sufficiency: p(the top alone) − p(x without the top)."""

    card: ClassVar = MetricCard(
        name="difference", family="faithfulness", higher_is_better=True, paper="Barkan et al. 2024", bounds=(-1, 1)
    )


@dataclass(frozen=True, kw_only=True)
class AopcDifference(Differences, OverBudgets):
    """Comprehensiveness minus sufficiency over several budgets."""

    card: ClassVar = MetricCard(
        name="aopc_difference",
        label="Difference (AOPC)",
        family="faithfulness",
        higher_is_better=True,
        paper="Barkan et al. 2024",
        bounds=(-1, 1),
    )


@dataclass(frozen=True, kw_only=True)
class LogOdds(AtBudget):
    """log p(x with the top replaced) − log p(x), with p never below 1e-12 (Shrikumar et al. 2017)."""

    how: RemovalMethod = "mask"
    card: ClassVar = MetricCard(
        name="log_odds", label="Log-odds", family="faithfulness", higher_is_better=False, paper="Shrikumar et al. 2017",
        bounds=(-27.631021115928547, 27.631021115928547),
    )  # fmt: skip

    def compute_points(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> Tensor:
        """[1, B]; a regression is an ExegeteError."""
        if model.task.name == "regression":
            raise ExegeteError("log_odds compares probabilities, and a regression has none: use comprehensiveness")
        return super().compute_points(model, batch, attribution, target)

    def supports(self, model: ExplainedModel) -> bool:
        """Whether the model's task has probabilities: all but regressions."""
        return model.task.name != "regression"

    def compute_effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The change of the logarithm."""
        logarithm = evaluate_with_full_input(p, ~chosen).clamp(min=LOWEST).log()
        return logarithm[1:] - logarithm[0]
