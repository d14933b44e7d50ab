"""The task's own loss on labelled examples."""

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
    """The task's loss (see `task_losses`), mean over the examples; 0 if no example has a usable label."""

    weight: float = 1.0
    name: ClassVar[str] = "cross_entropy"
    equation: ClassVar[str] = r"-\frac{1}{B} \sum_b \log p(y_b \mid x_b)"
    use: ClassVar[str] = "Always, unless a bound on the explanation alone is wanted (`er_bound`)."

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean loss over the examples with a usable label, a scalar."""
        return self.mean_over_labelled(step, step.task_losses)


def task_losses(model: ExplainedModel, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each example [B], in float32 or higher, and which examples have a usable label [B] bool.

    Classification: cross-entropy. Several labels: mean binary cross-entropy. Regression: squared error. Spans: mean of
    the cross-entropies of start and end; an answer outside the truncated text has no usable label and loss 0. Generated
    text: mean −log p of the response's tokens.

    Raises:
        ExegeteError: the batch has no labels.
    """
    if model.task.name == "generation":
        # the whole response is the target (start, end): its log-probability is the sum over its tokens
        whole = model.task.predict(logits, batch)
        return -model.task.log_probability(logits, whole) / (whole[:, 1] - whole[:, 0]), has_usable_label(batch)
    if batch.labels is None:
        raise ExegeteError("training and its evaluation need labelled examples: the rows have no label (or no answer)")
    labels, has_label = batch.labels, has_usable_label(batch)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if model.task.name == "span":
        # cross_entropy expects the classes, here the positions, in dimension 1
        losses = F.cross_entropy(logits.transpose(1, 2), labels.clamp(min=0), reduction="none")
        return losses.mean(1).masked_fill(~has_label, 0.0), has_label
    if model.task.name == "regression":
        return (logits.squeeze(-1) - labels.to(logits.dtype)).square(), has_label
    if model.task.name == "multi_label":
        losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
        return losses.mean(1), has_label
    return F.cross_entropy(logits, labels, reduction="none"), has_label
