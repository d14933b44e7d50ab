"""IvRA's clustering consistency: explanations should be similar within a class and differ between classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.objectives.base import TrainingStep
from expound.objectives.consistency import align_left
from expound.objectives.criterion import Criterion


@dataclass(frozen=True)
class ClusteringConsistencyLoss(Criterion):
    """The mean ‖r_i − r_j‖² over examples of the same label minus the mean over other labels (IvRA, eq. 20).

    Mean over the examples i of a batch; a part is left out for an example whose batch has no other example of the same
    label, or of another one. Explanations are compared position by position, each from its first real position on.

    Args: see `Criterion`.
    """

    name: ClassVar[str] = "clustering_consistency"
    separable: ClassVar[bool] = False
    equation: ClassVar[str] = (
        r"\overline{\lVert r_i - r_j \rVert^2}_{y_i = y_j} - \overline{\lVert r_i - r_j \rVert^2}_{y_i \ne y_j}"
    )
    use: ClassVar[str] = "Explanations of a class should be similar."
    avoid: ClassVar[str] = "Texts of different lengths; positions are compared one by one."

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the batch, a scalar. Raises ExpoundError without class labels."""
        if not step.model.task.supports("classes") or step.labels is None:
            raise ExpoundError("clustering consistency compares explanations by class: it needs labels of classes")
        scores = align_left(self.explain_prediction(step), step.batch.attended)
        distances = (scores[:, None] - scores[None]).square().sum(-1)
        same_label = step.labels[:, None] == step.labels[None]
        is_self = torch.eye(len(same_label), dtype=torch.bool, device=same_label.device)
        # the equation prints min and max beside the two sums: the second is to grow, so it is subtracted
        return (_row_mean(distances, same_label & ~is_self) - _row_mean(distances, ~same_label)).mean()


def _row_mean(values: Tensor, selected: Tensor) -> Tensor:
    """Return the mean of the selected entries of each row [B]; 0 for rows without any."""
    return (values * selected).sum(1) / selected.sum(1).clamp(min=1)
