"""Inputs of one class shall be explained alike, those of different classes differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.objectives.base import TrainingStep
from exegete.objectives.consistency import align_left
from exegete.objectives.criterion import Criterion


@dataclass(frozen=True)
class ClusteringConsistencyLoss(Criterion):
    """Mean ‖r_i − r_j‖² over others of the same label − the mean over those of other labels (IvRA, eq. 20).

    Mean over the examples i of a batch; one without others of a kind lacks that part. The equation prints min and max
    beside the two sums; the second is what is to grow, so that it is subtracted. Explanations are compared position by
    position, each from its own first one on.

    Args: see `Criterion`.
    """

    name: ClassVar[str] = "clustering_consistency"
    separable: ClassVar[bool] = False

    def __call__(self, step: TrainingStep) -> Tensor:
        """The mean over the batch, a scalar; needs labels of classes."""
        if step.model.task.name != "classification" or step.labels is None:
            raise ExegeteError("clustering consistency compares explanations by class: it needs labels of classes")
        scores = align_left(self.explain_prediction(step), step.batch.attended)
        squares = (scores[:, None] - scores[None]).square().sum(-1)
        same = step.labels[:, None] == step.labels[None]
        other, alike = ~same, same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        return (_mean(squares, alike) - _mean(squares, other)).mean()


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """[B] Over the chosen entries of each row; 0 where there is none."""
    return (values * chosen).sum(1) / chosen.sum(1).clamp(min=1)
