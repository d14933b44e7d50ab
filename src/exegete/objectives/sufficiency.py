"""The top of an explanation alone shall be enough for the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.objectives.base import TrainingStep
from exegete.objectives.criterion import ErasureCriterion

Form = Literal["margin", "mae", "kl", "reverse_kl"]


@dataclass(frozen=True)
class SufficiencyLoss(ErasureCriterion):
    """How much less the top alone says than the whole input, mean over examples and bins (IvRA, eq. 11, 16, 17).

    Args: see `ErasureCriterion`, and
        margin: μ of `margin`.
        form: `margin`: μ + max(−μ, CE(top) − CE(x)), 0 exactly where the top alone makes the prediction likelier by a
            factor of e^μ; `mae`: |CE(top) − CE(x)|; `kl`: KL(M(x) ‖ M(top)), the order in which the whole input's
            answer is what is to be matched; `reverse_kl`: KL(M(top) ‖ M(x)), the order in which eq. 17 is printed. CE
            is −log p of the prediction on x (spans: of start and end, added up).
    """

    margin: float = 0.1
    form: Form = "margin"
    name: ClassVar[str] = "sufficiency"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in get_args(Form):
            raise unknown("form of sufficiency", self.form, get_args(Form))
        if self.margin <= 0:
            raise ExegeteError(f"the margin is above 0, got {self.margin}")

    def keep_positions(self, top: Tensor) -> Tensor:
        """The top positions [B, L] themselves; all others are taken away."""
        return top

    def compute_losses(self, step: TrainingStep, left: Tensor, clean: Tensor) -> Tensor:
        """The loss [B] of the answer to the top alone against the clean answer, see `form`."""
        if self.form in ("kl", "reverse_kl"):
            pair = (clean, left) if self.form == "kl" else (left, clean)
            return answer_kl(step, *pair)
        target, log = self.predicted_target(step), step.model.task.log_probability
        more = log(clean, target) - log(left, target)
        return more.abs() if self.form == "mae" else (self.margin + more).clamp(min=0)


def answer_kl(step: TrainingStep, one: Tensor, other: Tensor) -> Tensor:
    """[B] KL(P ‖ Q) of two answers, from logits: over classes; of start and end, added up; of labels on or off."""
    task = step.model.task.name
    if task == "regression":
        raise ExegeteError("a regression has no probability: use form='mae' on classes or spans")
    precise = torch.promote_types(one.dtype, torch.float32)
    one, other = one.to(precise), other.to(precise)
    if task == "multi_label":
        one, other = torch.stack([one, -one], -1), torch.stack([other, -other], -1)
        p, q = F.logsigmoid(one), F.logsigmoid(other)
    else:
        p, q = F.log_softmax(one, -1), F.log_softmax(other, -1)
    return (p.exp() * (p - q)).flatten(1).sum(1)
