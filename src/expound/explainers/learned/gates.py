"""Random gates between 0 and 1 that select positions of a text, and what is expected of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

LOWER, UPPER = -0.1, 1.1
"""The interval to which HardKuma stretches its variable before it is clamped to [0, 1]."""
SMALLEST = 1e-6


@dataclass(frozen=True)
class BernoulliGates:
    """Gates that are 1 with probability σ(`logit`), else 0 (Lei et al. 2016, §4). `logit`: [B, L]."""

    logit: Tensor

    @property
    def selected(self) -> Tensor:
        """The probability that a gate is not 0 [B, L]."""
        return self.logit.sigmoid()

    def sample(self, uniform: Tensor) -> Tensor:
        """Return a sample [B, L] from uniform numbers in [0, 1); it has no gradient."""
        return (uniform < self.selected).to(self.logit)

    def log_probability(self, gates: Tensor) -> Tensor:
        """Return log P(z) of samples [B, L], gate by gate."""
        return nn.functional.logsigmoid(torch.where(gates > 0, self.logit, -self.logit))

    def most_likely(self) -> Tensor:
        """Return the more likely of 0 and 1 [B, L]."""
        return (self.logit > 0).to(self.logit)


@dataclass(frozen=True)
class HardKumaGates:
    """Kumaraswamy variables stretched to (−0.1, 1.1) and clamped to [0, 1] (HardKuma, Bastings et al. 2019, §3).

    k has the distribution function 1 − (1 − k^a)^b, and z = min(1, max(0, −0.1 + 1.2 k)) is 0 and 1 with a probability
    above 0, but has a gradient in between. `a`, `b`: [B, L], above 0.
    """

    a: Tensor
    b: Tensor

    def _exceed(self, value: float) -> Tensor:
        """Return the probability [B, L] that the stretched variable is above a value."""
        k = (value - LOWER) / (UPPER - LOWER)
        return (1 - k**self.a) ** self.b

    @property
    def selected(self) -> Tensor:
        """The probability that a gate is not 0 [B, L], see eq. 8."""
        return self._exceed(0.0)

    def sample(self, uniform: Tensor) -> Tensor:
        """Return a sample [B, L] from uniform numbers in [0, 1), with a gradient for a and b."""
        # the derivatives of the powers are infinite at 0 and 1
        uniform = uniform.clamp(SMALLEST, 1 - SMALLEST)
        k = (1 - uniform ** (1 / self.b)).clamp(SMALLEST, 1 - SMALLEST) ** (1 / self.a)
        return (LOWER + (UPPER - LOWER) * k).clamp(0, 1)

    def most_likely(self) -> Tensor:
        """Return 0 or 1 where that is the likeliest value, else the stretched mean of the variable [B, L]."""
        zero, one = 1 - self.selected, self._exceed(1.0)
        # E[k] = b · Beta(1 + 1/a, b)
        mean = self.b * torch.exp(
            torch.lgamma(1 + 1 / self.a) + torch.lgamma(self.b) - torch.lgamma(1 + 1 / self.a + self.b)
        )
        between = (LOWER + (UPPER - LOWER) * mean).clamp(0, 1)
        likeliest = torch.stack([zero, one, 1 - zero - one]).argmax(0)
        return torch.where(likeliest == 0, torch.zeros_like(mean), torch.where(likeliest == 1, 1.0, between))


def expect_changes(selected: Tensor, content: Tensor) -> Tensor:
    """Return how often neighbors are expected to differ in being selected [B], for probabilities [B, L].

    Gates are independent; `content` [B, L] bool says which positions count.
    """
    first, second = selected[:, :-1], selected[:, 1:]
    changes = first * (1 - second) + (1 - first) * second
    return (changes * (content[:, :-1] & content[:, 1:])).sum(1)
