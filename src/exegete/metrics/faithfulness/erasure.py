"""The effect of erasing positions on the model's answer, the common ground of the faithfulness metrics.

Positions are erased, and the model is asked again, with `ExplainedModel.predict_perturbed`: special tokens always stay.
p(·) is the target's probability; regressions have none, so there it is the value itself, and the bounds on cards do
not hold. A budget that rounds to no position at all scores 0 by definition.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from exegete.errors import unknown
from exegete.metrics.base import Metric, build_metric_input
from exegete.metrics.ranking import Rounding, check_fractions, top_fraction
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod

Divisor = Literal["bins", "bins_plus_one"]
Probability = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Erasure(Metric):
    """The change of p when the top positions are erased, or, where the top is left `keeps_top`, all others.

    `how`: `remove` deletes tokens; `mask`, `pad` and `zero` put the mask token, the padding token or a zero embedding
    in their place. `rounding`: of a budget in tokens: `ceil` up, `floor` down (which may be none), `er` down but at
    least one, of all tokens with the special ones. `keep_question`: of a question on a context, only the context's
    tokens are ranked and erased.
    """

    how: RemovalMethod = "remove"
    rounding: Rounding = "ceil"
    keep_question: bool = False
    keeps_top: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fractions(self.fractions())
        if self.how not in get_args(RemovalMethod):
            raise unknown("perturbation", self.how, get_args(RemovalMethod))
        if self.rounding not in get_args(Rounding):
            raise unknown("rounding", self.rounding, get_args(Rounding))

    @abstractmethod
    def fractions(self) -> tuple[float, ...]:
        """The K budgets: which fractions of the content count as the top."""

    def compute_effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """[K, B] The value at each budget; `chosen` [K, B, L]: the top; `p` [N, B]: of what keep [N, B, L] leaves."""
        return compute_drops(p, self.keep_masks(chosen))

    def keep_masks(self, chosen: Tensor) -> Tensor:
        """[K, B, L] What stays at each budget."""
        return chosen if self.keeps_top else ~chosen

    @abstractmethod
    def aggregate(self, compute_points: Tensor) -> Tensor:
        """[B] One number from the values at each budget [K, B]."""

    def compute_points(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> Tensor:
        """[K, B] The value at each budget."""
        if self.keep_question:
            batch = replace(batch, content=batch.erasable)
        chosen = top_fraction(attribution, batch, self.fractions(), self.rounding)

        def p(keep: Tensor) -> Tensor:
            return model.task.probability(model.predict_perturbed(batch, keep, self.how), target).double()

        return self.compute_effect(p, chosen).masked_fill(~chosen.any(-1), 0.0)

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """See `Metric`; defined for every example."""
        return {self.name: self.aggregate(self.compute_points(model, batch, attribution, target)).float()}

    def evaluate_budgets(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[float, Tensor]:
        """The value [B] at each budget; arguments and NaN as in `judge`."""
        case = build_metric_input(model, batch, attribution, target)
        with torch.no_grad(), model.cache_perturbed():
            compute_points = self.compute_points(model, batch, case.attribution, case.target)
        return {
            budget: case.mask_undefined(point) for budget, point in zip(self.fractions(), compute_points, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class AtBudget(Erasure):
    """One budget. `k`: the share of the text's tokens (special tokens not counted) that are the top."""

    k: float = 0.2

    def fractions(self) -> tuple[float, ...]:
        """The only budget, as a fraction of the content."""
        return (self.k,)

    def aggregate(self, compute_points: Tensor) -> Tensor:
        """The value at the only budget: [B]."""
        return compute_points[0]


@dataclass(frozen=True, kw_only=True)
class OverBudgets(Erasure):
    """The mean over several budgets (area over the perturbation curve).

    `budgets`: the shares of the text's tokens (special tokens not counted) that are the top, one after the other.
    `divisor`: `bins` divides the sum by the number of budgets, `bins_plus_one` by one more, as AML's figures do.
    """

    budgets: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2, 0.5)
    divisor: Divisor = "bins"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divisor not in get_args(Divisor):
            raise unknown("divisor", self.divisor, get_args(Divisor))

    def fractions(self) -> tuple[float, ...]:
        """The budgets that the mean is over."""
        return self.budgets

    def aggregate(self, compute_points: Tensor) -> Tensor:
        """The sum over the divisor."""
        return compute_points.sum(0) / (len(compute_points) + (self.divisor == "bins_plus_one"))


def evaluate_with_full_input(p: Probability, keep: Tensor) -> Tensor:
    """[1 + N, B] p(x) first, then p of what each keep-mask leaves, all in one call."""
    return p(torch.cat([torch.ones_like(keep[:1]), keep]))


def compute_drops(p: Probability, keep: Tensor) -> Tensor:
    """[N, B] p(x) − p(what keep leaves)."""
    answers = evaluate_with_full_input(p, keep)
    return answers[0] - answers[1:]
