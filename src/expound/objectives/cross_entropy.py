"""The task's own loss on labeled examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from expound.objectives.base import LabeledObjective, TrainingStep


@dataclass(frozen=True)
class CrossEntropy(LabeledObjective):
    """The task's loss (see `task_losses`), mean over the examples; 0 if no example has a usable label."""

    weight: float = 1.0
    name: ClassVar[str] = "cross_entropy"
    equation: ClassVar[str] = r"-\frac{1}{B} \sum_b \log p(y_b \mid x_b)"
    use: ClassVar[str] = "Always, unless a bound on the explanation alone is wanted (`er_bound`)."

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean loss over the examples with a usable label, a scalar."""
        return self.mean_over_labeled(step, step.task_losses)
