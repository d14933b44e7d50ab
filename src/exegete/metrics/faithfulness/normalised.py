"""Faithfulness on the scale from saying nothing to saying everything.

With x₀ the input that says nothing, all content erased in the same way as the rest, and d₀ = max(0, p(x) − p(x₀)) + ε:
budgets score 1 − max(0, p(x) − p(top alone)) / d₀, or max(0, p(x) − p(x without the top)) / d₀, clipped to [0, 1]
(Carton et al. 2020; with Suff(0) = 1 − d₀ these are the usual (Suff(α) − Suff(0)) / (1 − Suff(0)) and
Comp(α) / (1 − Suff(0))). ε = 1e-4 also guards the division: where the model answers x₀ as well as x, a drop above ε
counts as the largest there is.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.data.cards import MetricCard
from exegete.metrics.faithfulness.erasure import OverBudgets, Probability, drops

EPSILON = 1e-4


@dataclass(frozen=True, kw_only=True)
class Normalised(OverBudgets):
    """A drop as a share of the drop to the input that says nothing, mean over budgets."""

    @abstractmethod
    def kept(self, chosen: Tensor) -> Tensor:
        """[K, B, L] What stays at each budget."""

    def shares(self, p: Probability, chosen: Tensor) -> Tensor:
        """[K, B] The drop's share, from 0 to 1."""
        drop = drops(p, torch.cat([torch.zeros_like(chosen[:1]), self.kept(chosen)])).clamp(min=0)
        return (drop[1:] / (drop[0] + EPSILON)).clamp(max=1)


@dataclass(frozen=True, kw_only=True)
class NormalisedComprehensiveness(Normalised):
    """The share of the possible drop that goes with the top."""

    card: ClassVar = MetricCard(
        name="normalised_comprehensiveness", family="faithfulness", higher_is_better=True, paper="Carton et al. 2020",
        bounds=(0, 1),
    )  # fmt: skip

    def kept(self, chosen: Tensor) -> Tensor:
        """All content but the top at each budget: [K, B, L]."""
        return ~chosen

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """The share of the possible drop at each budget: [K, B]."""
        return self.shares(p, chosen)


@dataclass(frozen=True, kw_only=True)
class NormalisedSufficiency(Normalised):
    """The share of the possible drop that the top alone prevents: here, unlike in `sufficiency`, higher is better."""

    card: ClassVar = MetricCard(
        name="normalised_sufficiency", family="faithfulness", higher_is_better=True, paper="Carton et al. 2020",
        bounds=(0, 1),
    )  # fmt: skip

    def kept(self, chosen: Tensor) -> Tensor:
        """The top alone at each budget: [K, B, L]."""
        return chosen

    def effect(self, p: Probability, chosen: Tensor) -> Tensor:
        """One minus the share of the possible drop: [K, B]."""
        return 1 - self.shares(p, chosen)
