"""The losses that train a soft mask, one value per example (Barkan et al. 2024, eq. 4 to 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from expound.data.registry import check_choices
from expound.errors import ExpoundError
from expound.models.batch import to_float32

Inverse = Literal["log", "probability", "negative_entropy"]
Sparsity = Literal["bce", "l1"]
MIN_PROBABILITY = 1e-7


def preservation(kept: Tensor, answer: Tensor) -> Tensor:
    """Return −Σ_j y_j log F_j(x') (eq. 5) from logits [B, C] under the mask and prediction y [B, C] without it: [B]."""
    return -(answer * to_float32(kept).log_softmax(-1)).sum(-1)


def inverse(without: Tensor, answer: Tensor, form: Inverse = "log") -> Tensor:
    """Return how much of the predicted class ŷ is left under the inverse mask, from logits and y [B, C]: [B].

    `log`: −log(1 − F_ŷ(x'')) (eq. 6), exact also if F_ŷ rounds to 1; `probability`: F_ŷ(x'');
    `negative_entropy`: Σ_j F_j(x'') log F_j(x'').
    """
    return INVERSE[form](to_float32(without), answer.argmax(-1, keepdim=True))


def sparsity(scores: Tensor, counted: Tensor, form: Sparsity = "bce") -> Tensor:
    """Return the mean over `counted` [B, L] of −log(1 − a) (`bce`, eq. 7) or of a (`l1`), for scores a [B, L]: [B]."""
    # The mean is over real tokens: the reference code also counts padding, so that its loss depends on the batch.
    values = SPARSITY[form](to_float32(scores)).masked_fill(~counted, 0.0)
    return values.sum(-1) / counted.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class MaskWeights:
    """The weights λ of the three terms, each at least 0, and the forms of the terms.

    In training the weight of sparsity grows from 0 over the first `sparsity_warmup` steps. If it is large from the
    start, all scores may fall to 0 before the other terms tell the words apart; if it grows too slowly, all may rise
    to 1.
    """

    preservation: float = 0.5
    sparsity: float = 0.5
    inverse: float = 0.5
    inverse_form: Inverse = "log"
    sparsity_form: Sparsity = "bce"
    sparsity_warmup: int = 0

    def __post_init__(self) -> None:
        weights = (self.preservation, self.sparsity, self.inverse)
        if min(weights) < 0 or not max(weights) > 0:
            raise ExpoundError(f"expected weights of at least 0, and one above 0, got {weights}")
        check_choices(self)

    def total(self, kept: Tensor, without: Tensor, answer: Tensor, scores: Tensor, counted: Tensor) -> Tensor:
        """Return the weighted sum of the three losses of each example (eq. 4): [B]."""
        return (
            self.preservation * preservation(kept, answer)
            + self.inverse * inverse(without, answer, self.inverse_form)
            + self.sparsity * sparsity(scores, counted, self.sparsity_form)
        )


def _log(logits: Tensor, first: Tensor) -> Tensor:
    # 1 − p as the sum of the other classes: `1 - softmax` loses all digits near p = 1.
    others = logits.scatter(-1, first, -torch.inf)
    return logits.logsumexp(-1) - others.logsumexp(-1)


def _probability(logits: Tensor, first: Tensor) -> Tensor:
    return logits.softmax(-1).gather(-1, first).squeeze(-1)


def _negative_entropy(logits: Tensor, first: Tensor) -> Tensor:
    logarithms = logits.log_softmax(-1)
    return (logarithms.exp() * logarithms).sum(-1)


INVERSE: dict[Inverse, Callable[[Tensor, Tensor], Tensor]] = {
    "log": _log,
    "probability": _probability,
    "negative_entropy": _negative_entropy,
}
SPARSITY: dict[Sparsity, Callable[[Tensor], Tensor]] = {
    "bce": lambda scores: -(1 - scores).clamp(min=MIN_PROBABILITY).log(),
    "l1": lambda scores: scores,
}
