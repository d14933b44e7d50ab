"""Normalized comprehensiveness and sufficiency, on a scale from an empty text to the whole text.

x₀ is the input with all content erased in the same way as the rest, and d₀ = max(0, p(x) − p(x₀)) + ε. A fraction
scores 1 − max(0, p(x) − p(top alone)) / d₀ for sufficiency and max(0, p(x) − p(x without the top)) / d₀ for
comprehensiveness, clipped to [0, 1] (Carton et al. 2020). With Suff(0) = 1 − d₀ these are the published forms
(Suff(α) − Suff(0)) / (1 − Suff(0)) and Comp(α) / (1 − Suff(0)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.metrics.faithfulness.erasure import AveragedErasure, Probability, compute_drops

EPSILON = 1e-4
"""Guards the division: if x₀ and x have the same prediction, a drop above this counts as the drop to the empty text."""


@dataclass(frozen=True, kw_only=True)
class NormalizedComprehensiveness(AveragedErasure):
    """Share of the drop to the empty text that removing the top causes, averaged over fractions.

    Examples:
        >>> judge("normalized_comprehensiveness?fractions=0.3,0.6", "good fine film", [2, 1, 0])  # (.3 / .5 + 1) / 2
        0.8
    """

    card: ClassVar = MetricCard(
        name="normalized_comprehensiveness", family="faithfulness", higher_is_better=True, paper="Carton et al. 2020",
        bounds=(0, 1),
        equation=r"\frac{p(x) - p(x \setminus \text{top}_k)}{p(x) - p(\emptyset)}",
        computed="Comprehensiveness as a share of the drop to the empty text ∅, which has nothing but "
        "special tokens. Drops below 0 count as 0, shares above 1 as 1, and the value is the mean over five fractions "
        "(1, 5, 10, 20 and 50 % of the tokens, `fractions`). {p} {tokens} {removed}",
        read="From 0 to 1. 0.40: on average, removing the top causes 40 % of the drop to the empty text. If the empty "
        "text has the same prediction, any drop above 0.0001 counts as 1. {control}",
        use="The model is very confident for some texts and hardly for others, and all texts should count equally.",
        avoid="Do not use it when the model gives the class the same probability without any text: the shares are "
        "then noise.",
    )  # fmt: skip

    def compute_effect(self, p: Probability, top: Tensor) -> Tensor:
        """Return the drop as a share of the drop to the empty text, or one minus it if the top is kept: [K, B]."""
        empty = torch.zeros_like(top[:1])
        drops = compute_drops(p, torch.cat([empty, self.keep_masks(top)])).clamp(min=0)
        share = (drops[1:] / (drops[0] + EPSILON)).clamp(max=1)
        return 1 - share if self.keeps_top else share


@dataclass(frozen=True, kw_only=True)
class NormalizedSufficiency(NormalizedComprehensiveness):
    """Share of the possible drop that the top alone prevents; unlike in `sufficiency`, higher is better.

    Examples:
        >>> judge("normalized_sufficiency?fractions=0.3,0.6", "good fine film", [2, 1, 0])  # (1 − .2 / .5 + 1) / 2
        0.8
    """

    card: ClassVar = MetricCard(
        name="normalized_sufficiency", family="faithfulness", higher_is_better=True, paper="Carton et al. 2020",
        bounds=(0, 1),
        equation=r"1 - \frac{p(x) - p(\text{top}_k)}{p(x) - p(\emptyset)}",
        computed="The share of the largest drop that the top alone prevents; the largest drop is the one to ∅, the "
        "text without anything but special tokens. Mean over five fractions (1, 5, 10, 20 and 50 % of the tokens, "
        "`fractions`). {p} {tokens} {removed}",
        read="From 0 to 1, and unlike in `sufficiency` higher is better. 1: the top alone is enough at every fraction. "
        "{control}",
        use="As `normalized_comprehensiveness`, for sufficiency.",
        avoid="Do not use it when the model gives the class the same probability without any text, or in one column "
        "with `sufficiency`, whose lower values are better.",
    )  # fmt: skip
    keeps_top: ClassVar = True
