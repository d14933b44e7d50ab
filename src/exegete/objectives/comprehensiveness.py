"""The answer shall suffer when the top of its explanation is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exegete.errors import ExegeteError
from exegete.objectives.base import TrainingStep
from exegete.objectives.criterion import ErasureCriterion


@dataclass(frozen=True)
class ComprehensivenessLoss(ErasureCriterion):
    """μ + max(−μ, CE(x) − CE(x without the top)), mean over examples and bins (IvRA, eq. 10).

    CE is −log p of the prediction on x (spans: of its start and of its end, added up). The term is at least 0, and 0
    exactly where taking the top away costs the prediction a factor of e^μ.

    The clean answer is not held still unless asked: its part of the gradient makes the prediction on x likelier. Held,
    all that is left is to make the prediction unlikely without the top, which makes it unlikelier on x as well.

    Args: see `ErasureCriterion`; `margin`: μ.
    """

    detach_clean: bool = False
    margin: float = 1.0
    name: ClassVar[str] = "comprehensiveness"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin <= 0:
            raise ExegeteError(f"the margin is above 0, got {self.margin}")

    def keep_positions(self, top: Tensor) -> Tensor:
        """Everything but the top [B, L], as the complement of its mask."""
        return 1 - top

    def compute_losses(self, step: TrainingStep, left: Tensor, clean: Tensor) -> Tensor:
        """The hinge loss of each example: [B]."""
        target, log = self.predicted_target(step), step.model.task.log_probability
        return (self.margin + log(left, target) - log(clean, target)).clamp(min=0)
