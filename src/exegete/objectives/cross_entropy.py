"""The cross-entropy objective: the task's own loss on labelled examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models import Batch, ExplainedModel
from exegete.objectives.base import LabelledObjective, TrainingStep, has_usable_label


@dataclass(frozen=True)
class CrossEntropy(LabelledObjective):
    """Mean over the examples of the task's loss (see `task_losses`); 0 when no example has a usable label."""

    weight: float = 1.0
    name: ClassVar[str] = "cross_entropy"

    def __call__(self, step: TrainingStep) -> Tensor:
        """The task's loss, a scalar: a mean over the examples with a usable label."""
        return self.mean_over_labelled(step, step.task_losses)


def task_losses(model: ExplainedModel, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Every example's loss [B], in float32 at least, and which examples count [B] bool.

    Classification: cross-entropy. Several labels: mean binary cross-entropy. Regression: squared error. Spans: mean of
    the cross-entropies of start and end; an answer that was cut off doesn't count, and its loss is 0. Generated text:
    mean −log p of the response's tokens.

    Raises:
        ExegeteError: the batch has no labels.
    """
    if model.task.name == "generation":
        whole = model.task.predict(logits, batch)
        return -model.task.log_probability(logits, whole) / (whole[:, 1] - whole[:, 0]), has_usable_label(batch)
    if batch.labels is None:
        raise ExegeteError("training and its evaluation need labelled examples: the rows have no label (or no answer)")
    labels, counted = batch.labels, has_usable_label(batch)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if model.task.name == "span":
        ends = F.cross_entropy(logits.transpose(1, 2), labels.clamp(min=0), reduction="none")
        return ends.mean(1).masked_fill(~counted, 0.0), counted
    if model.task.name == "regression":
        return (logits.squeeze(-1) - labels.to(logits.dtype)).square(), counted
    if model.task.name == "multi_label":
        each = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
        return each.mean(1), counted
    return F.cross_entropy(logits, labels, reduction="none"), counted
