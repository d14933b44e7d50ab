"""IvRA's comprehensiveness: without the top of its explanation the prediction should become unlikely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expound.errors import ExpoundError
from expound.objectives.base import TrainingStep
from expound.objectives.criterion import ErasureCriterion


@dataclass(frozen=True)
class ComprehensivenessLoss(ErasureCriterion):
    """The hinge loss μ + max(−μ, CE(x) − CE(x without the top)), mean over examples and fractions (IvRA, eq. 10).

    CE is −log p of the prediction on x (spans: the sum over start and end). The term is at least 0, and it is 0 if
    removing the top makes the prediction less likely by a factor of e^μ or more.

    By default the prediction on the whole input has a gradient, which makes the prediction on x likelier. With
    `detach_clean` the only way to lower the term is to make the prediction unlikely without the top, and that makes it
    less likely on x as well.

    Args: see `ErasureCriterion`; `margin`: μ.
    """

    detach_clean: bool = False
    margin: float = 1.0
    name: ClassVar[str] = "comprehensiveness"
    equation: ClassVar[str] = r"\mu + \max(-\mu, \text{CE}(x) - \text{CE}(x \setminus \text{top}))"
    use: ClassVar[str] = "The model should need what its explanation names."
    avoid: ClassVar[str] = "Images; use another criterion."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin <= 0:
            raise ExpoundError(f"the margin is above 0, got {self.margin}")

    def keep_positions(self, top: Tensor) -> Tensor:
        """Return every position but the top [B, L]."""
        return 1 - top

    def compute_losses(self, step: TrainingStep, logits: Tensor, clean_logits: Tensor) -> Tensor:
        """Return the hinge loss of each example [B]."""
        target, log_probability = self.predicted_target(step), step.model.task.log_probability
        # μ + max(−μ, z) = max(0, μ + z), with z = log p(x without the top) − log p(x)
        return (self.margin + log_probability(logits, target) - log_probability(clean_logits, target)).clamp(min=0)
