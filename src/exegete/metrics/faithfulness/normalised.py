"""Faithfulness on the scale from saying nothing to saying everything.

With x₀ the input that says nothing, all content erased in the same way as the rest, and d₀ = max(0, p(x) − p(x₀)) + ε:
budgets score 1 − max(0, p(x) − p(top alone)) / d₀, or max(0, p(x) − p(x without the top)) / d₀, clipped to [0, 1]
(Carton et al. 2020; with Suff(0) = 1 − d₀ these are the usual (Suff(α) − Suff(0)) / (1 − Suff(0)) and
Comp(α) / (1 − Suff(0))). ε = 1e-4 also guards the division: where the model answers x₀ as well as x, a drop above ε
counts as the largest there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.metrics.faithfulness.erasure import OverBudgets, Probability, compute_drops

EPSILON = 1e-4


@dataclass(frozen=True, kw_only=True)
class NormalisedComprehensiveness(OverBudgets):
    """The share of the possible drop that goes with the top, mean over budgets."""

    card: ClassVar = MetricCard(
        name="normalised_comprehensiveness", family="faithfulness", higher_is_better=True, paper="Carton et al. 2020",
        bounds=(0, 1),
    )  # fmt: skip

    def compute_effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """[K, B] The drop's share of that to the input that says nothing; where the top is alone one minus it."""
        drop = compute_drops(p, torch.cat([torch.zeros_like(chosen[:1]), self.keep_masks(chosen)])).clamp(min=0)
        share = (drop[1:] / (drop[0] + EPSILON)).clamp(max=1)
        return 1 - share if self.keeps_top else share


@dataclass(frozen=True, kw_only=True)
class NormalisedSufficiency(NormalisedComprehensiveness):
    """The share of the possible drop that the top alone prevents: here, unlike in `sufficiency`, higher is better."""

    card: ClassVar = MetricCard(
        name="normalised_sufficiency", family="faithfulness", higher_is_better=True, paper="Carton et al. 2020",
        bounds=(0, 1),
    )  # fmt: skip
    keeps_top: ClassVar = True
