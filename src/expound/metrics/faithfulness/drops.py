"""Comprehensiveness and sufficiency: does the model need the top positions, and are they enough?

See `erasure` for the rules that all of these metrics share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.errors import ExpoundError
from expound.metrics.faithfulness.erasure import (
    AtBudget,
    AveragedErasure,
    Erasure,
    Probability,
    evaluate_with_full_input,
)
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod

LOWEST = 1e-12
"""Smallest probability whose logarithm log-odds takes; the bounds on its card are ∓ log of it."""


@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(AtBudget):
    """Drop of the probability when the top is removed: p(x) − p(x without the top).

    Examples:
        >>> judge("comprehensiveness?fraction=0.3", "good fine film", [2, 1, 0])  # .7 − .4 without "good"
        0.3
    """

    card: ClassVar = MetricCard(
        name="comprehensiveness", family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020",
        bounds=(-1, 1),
        equation=r"p(x) - p(x \setminus \text{top}_k)",
        computed="The drop of the probability when the top fifth of the tokens (`fraction`) is removed. {p} {tokens} "
        "{removed}",
        read="0.30 means that the probability fell by 30 points. The highest possible value is p(x); 0: the model does "
        "not need these tokens; below 0: it is more confident without them. {control}",
        use="Does the prediction need the tokens that the explanation names?",
        avoid="Do not use it alone if the model never saw texts with gaps: deleted texts are then unlike its training "
        "texts. Read it together with `f_fidelity`.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sufficiency(AtBudget):
    """Drop of the probability when only the top is kept: p(x) − p(the top alone).

    Examples:
        >>> judge("sufficiency?fraction=0.3", "good fine film", [2, 1, 0])  # .7 − .5 for "good" alone
        0.2
    """

    card: ClassVar = MetricCard(
        name="sufficiency", family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020", bounds=(-1, 1),
        equation=r"p(x) - p(\text{top}_k)",
        computed="The drop of the probability when only the top fifth of the tokens (`fraction`) is kept. {p} {tokens} "
        "{removed}",
        read="Lower is better. 0: the top alone gives the same probability; below 0: a higher one; 0.30: 30 points are "
        "missing. {control}",
        use="Are the tokens that the explanation names enough for the prediction?",
        avoid="Do not use it on texts of a few words: a fifth of them is one token, which is hardly a text.",
    )  # fmt: skip
    keeps_top: ClassVar = True


@dataclass(frozen=True, kw_only=True)
class AopcComprehensiveness(AveragedErasure):
    """Comprehensiveness averaged over several fractions.

    Examples:
        >>> judge("aopc_comprehensiveness?fractions=0.3,0.6", "good fine film", [2, 1, 0])  # (.3 + .5) / 2
        0.4
    """

    card: ClassVar = MetricCard(
        name="aopc_comprehensiveness", label="Comprehensiveness (AOPC)",
        family="faithfulness", higher_is_better=True, paper="DeYoung et al. 2020", bounds=(-1, 1),
        equation=r"\frac{1}{|K|} \sum_{k \in K} [p(x) - p(x \setminus \text{top}_k)]",
        computed="The mean drop of the probability over five fractions K: without the top 1, 5, 10, 20 and 50 % of the "
        "tokens (`fractions`). {p} {tokens} So 1 % of a text of twenty tokens is one token. {removed}",
        read="0.20 means that the probability fell by 20 points on average. The highest possible value is p(x); 0: the "
        "model does not need these tokens. {control}",
        use="The first metric of `expound compare`, which orders the methods: it does not depend on one fraction.",
        avoid="Do not use it to compare models, whose ranges differ; use `naopc_comprehensiveness`.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AopcSufficiency(AveragedErasure):
    """Sufficiency averaged over several fractions.

    Examples:
        >>> judge("aopc_sufficiency?fractions=0.3,0.6", "good fine film", [2, 1, 0])  # (.2 + 0) / 2
        0.1
    """

    card: ClassVar = MetricCard(
        name="aopc_sufficiency", label="Sufficiency (AOPC)",
        family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020", bounds=(-1, 1),
        equation=r"\frac{1}{|K|} \sum_{k \in K} [p(x) - p(\text{top}_k)]",
        computed="The mean drop of the probability over five fractions K: with only the top 1, 5, 10, 20 and 50 % of "
        "the tokens (`fractions`). {p} {tokens} {removed}",
        read="Lower is better. 0: the top alone is enough at every fraction; 0.30: 30 points are missing on average. "
        "{control}",
        use="Together with `aopc_comprehensiveness`: are the tokens that the prediction needs also enough for it?",
        avoid="Do not use it to compare models, whose ranges differ; use `naopc_sufficiency`.",
    )  # fmt: skip
    keeps_top: ClassVar = True


class Differences(Erasure):
    """Base of the metrics p(the top alone) − p(x without the top)."""

    def compute_effect(self, p: Probability, top: Tensor) -> Tensor:
        """Return comprehensiveness minus sufficiency at each fraction: [K, B]."""
        # p(x) cancels in the difference, so the full input is not run.
        top_alone, without_top = p(torch.cat([top, ~top])).chunk(2)
        return top_alone - without_top


@dataclass(frozen=True, kw_only=True)
class ComprehensivenessMinusSufficiency(Differences, AtBudget):
    """Comprehensiveness minus sufficiency: p(the top alone) − p(x without the top).

    Examples:
        >>> judge("comprehensiveness_minus_sufficiency?fraction=0.3", "good fine film", [2, 1, 0])  # .5 − .4
        0.1
    """

    card: ClassVar = MetricCard(
        name="comprehensiveness_minus_sufficiency", family="faithfulness", higher_is_better=True,
        paper="Barkan et al. 2024", bounds=(-1, 1),
        equation=r"p(\text{top}_k) - p(x \setminus \text{top}_k)",
        computed="Comprehensiveness minus sufficiency: the probability with only the top fifth of the tokens "
        "(`fraction`), minus the probability without them. {p} {tokens} {removed}",
        read="From −1 to 1. Near 1: the top alone decides, and without it the prediction is lost. 0: top and rest give "
        "the same probability. {control}",
        use="You want comprehensiveness and sufficiency in one number, as AML reports it.",
        avoid="Do not use it when you want to know which of the two failed.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AopcComprehensivenessMinusSufficiency(Differences, AveragedErasure):
    """Comprehensiveness minus sufficiency, averaged over several fractions.

    Examples:
        .4 − .1.

        >>> judge("aopc_comprehensiveness_minus_sufficiency?fractions=0.3,0.6", "good fine film", [2, 1, 0])
        0.3
    """

    card: ClassVar = MetricCard(
        name="aopc_comprehensiveness_minus_sufficiency", label="Difference (AOPC)",
        family="faithfulness", higher_is_better=True, paper="Barkan et al. 2024", bounds=(-1, 1),
        equation=r"\text{AOPC}_C - \text{AOPC}_S",
        computed="`aopc_comprehensiveness` minus `aopc_sufficiency` over the same five fractions (1, 5, 10, 20, 50 % "
        "of the tokens, `fractions`). {p} {tokens} {removed}",
        read="From −1 to 1, higher is better. {control}",
        use="You want comprehensiveness and sufficiency in one number, over several fractions.",
        avoid="Do not use it when you want to know which of the two failed.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LogOdds(AtBudget):
    """Change of log p when the top is replaced: log p(x without the top) − log p(x) (Shrikumar et al. 2017).

    Examples:
        >>> judge("log_odds?fraction=0.3", "good fine film", [2, 1, 0])  # ln .4 − ln .7
        -0.56
    """

    perturbation: RemovalMethod = "mask"
    card: ClassVar = MetricCard(
        name="log_odds", label="Log-odds", family="faithfulness", higher_is_better=False, paper="Shrikumar et al. 2017",
        bounds=(-27.631021115928547, 27.631021115928547),
        equation=r"\log p(x \text{ with top}_k \text{ masked}) - \log p(x)",
        computed="The change of the natural logarithm of the probability when the top fifth of the tokens (`fraction`) "
        "is replaced by the mask token (`perturbation`); probabilities below 1e-12 count as 1e-12. {p} {tokens}",
        read="Lower is better: −0.69 means that the probability halved, −2.3 that a tenth of it is left. 0: no change; "
        "at most log(1 / p(x)). {control}",
        use="The model is so confident that the probability itself hardly moves.",
        avoid="Do not use its mean when a few texts fall to almost 0: they decide it alone. Do not use it for "
        "regressions, which have no probability.",
    )  # fmt: skip

    def compute_points(self, model: ExplainedModel, batch: Batch, attribution: Tensor, target: Tensor) -> Tensor:
        """Return the value at the only fraction [1, B]. Raises ExpoundError for a regression."""
        if not self.supports(model):
            raise ExpoundError("log_odds compares probabilities, and a regression has none: use comprehensiveness")
        return super().compute_points(model, batch, attribution, target)

    def supports(self, model: ExplainedModel) -> bool:
        """Return whether the model's task has probabilities, which is true for all but regressions."""
        return not model.task.predicts_number

    def compute_effect(self, p: Probability, top: Tensor) -> Tensor:
        """Return the change of the logarithm: [K, B]."""
        # Clamped: one example with probability 0 would make the mean over a dataset −inf.
        log_p = evaluate_with_full_input(p, ~top).clamp(min=LOWEST).log()
        return log_p[1:] - log_p[0]
