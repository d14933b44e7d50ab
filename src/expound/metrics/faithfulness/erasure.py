"""Shared parts of the faithfulness metrics that erase positions and measure the change of the model's output.

Special tokens are never erased. p(·) is the target's probability. Regressions have no probability: there p is the
value itself, and the bounds on the metrics' cards do not hold.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from expound.metrics.base import Metric, build_metric_input
from expound.metrics.ranking import Rounding, check_fractions, top_fraction
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod

Divisor = Literal["fractions", "fractions_plus_one"]
Probability = Callable[[Tensor], Tensor]
"""A function from keep-masks [N, B, L] to the target's probability [N, B] on what they keep."""


@dataclass(frozen=True, kw_only=True)
class Erasure(Metric):
    """Change of p when the top positions are erased or, with `keeps_top`, when all other positions are erased.

    `perturbation`: `remove` deletes tokens; `mask`, `pad` and `zero` replace them by the mask token, the padding token
    or a zero embedding. `rounding`: how a fraction becomes a number of tokens: `ceil` rounds up; `floor` rounds down,
    possibly to 0; `er` rounds down to at least 1 and counts special tokens too. `keep_question`: for a question with a
    context, rank and erase tokens of the context only.
    """

    perturbation: RemovalMethod = "remove"
    rounding: Rounding = "ceil"
    keep_question: bool = False
    keeps_top: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions(self.list_fractions())

    @abstractmethod
    def list_fractions(self) -> tuple[float, ...]:
        """Return the K fractions of the content that count as the top."""

    def compute_effect(self, p: Probability, top: Tensor) -> Tensor:
        """Return the value at each fraction [K, B].

        Args:
            p: the target's probability [N, B] for keep-masks [N, B, L].
            top: [K, B, L] the top positions at each fraction.
        """
        return compute_drops(p, self.keep_masks(top))

    def keep_masks(self, top: Tensor) -> Tensor:
        """Return the positions [K, B, L] that are kept at each fraction."""
        return top if self.keeps_top else ~top

    @abstractmethod
    def aggregate(self, points: Tensor) -> Tensor:
        """Return one value per example [B] from the values at each fraction [K, B]."""

    def compute_points(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> Tensor:
        """Return the value at each fraction: [K, B]."""
        if self.keep_question:
            batch = replace(batch, content=batch.erasable)
        top = top_fraction(attribution, batch, self.list_fractions(), self.rounding)

        def p(keep: Tensor) -> Tensor:
            # float64: drops are differences of probabilities that are nearly equal for confident models.
            return model.task.probability(model.predict_perturbed(batch, keep, self.perturbation), target).double()

        # AML: floor rounding can select no token at all, and the metric is then 0 by definition, also log-odds.
        return self.compute_effect(p, top).masked_fill(~top.any(-1), 0.0)

    def compute(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return one value per example [B], see `Metric.compute`; defined for every example."""
        return {self.name: self.aggregate(self.compute_points(model, batch, attribution, target)).float()}

    def evaluate_fractions(
        self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Any = None
    ) -> dict[float, Tensor]:
        """Return the value [B] at each fraction; arguments and NaN as in `evaluate`."""
        inputs = build_metric_input(model, batch, attribution, target)
        with torch.no_grad(), model.cache_perturbed():
            points = self.compute_points(model, batch, inputs.attribution, inputs.target)
        return {
            fraction: inputs.mask_undefined(point)
            for fraction, point in zip(self.list_fractions(), points, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class AtBudget(Erasure):
    """An erasure metric at one fraction.

    `fraction`: the share of the text's tokens, without special tokens, that is the top.
    """

    fraction: float = 0.2

    def list_fractions(self) -> tuple[float, ...]:
        """Return the only fraction of the content that counts as the top."""
        return (self.fraction,)

    def aggregate(self, points: Tensor) -> Tensor:
        """Return the value at the only fraction: [B]."""
        return points[0]


@dataclass(frozen=True, kw_only=True)
class AveragedErasure(Erasure):
    """An erasure metric averaged over several fractions (area over the perturbation curve).

    `fractions`: the shares of the text's tokens, without special tokens, that are the top. `divisor`: `fractions`
    divides the sum by the number of fractions; `fractions_plus_one` divides by one more, as AML's reference code does.
    """

    fractions: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2, 0.5)
    divisor: Divisor = "fractions"

    def list_fractions(self) -> tuple[float, ...]:
        """Return the fractions that the mean is taken over."""
        return self.fractions

    def aggregate(self, points: Tensor) -> Tensor:
        """Return the sum over fractions divided by the divisor: [B]."""
        return points.sum(0) / (len(points) + (self.divisor == "fractions_plus_one"))


def evaluate_with_full_input(p: Probability, keep: Tensor) -> Tensor:
    """Return p(x), followed by p for each keep-mask [N, B, L]: [1 + N, B]."""
    # One call: the full input is then packed with the perturbed ones instead of taking a pass of its own.
    return p(torch.cat([torch.ones_like(keep[:1]), keep]))


def compute_drops(p: Probability, keep: Tensor) -> Tensor:
    """Return p(x) − p(kept part) for each keep-mask [N, B, L]: [N, B]."""
    answers = evaluate_with_full_input(p, keep)
    return answers[0] - answers[1:]
