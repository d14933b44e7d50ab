"""Tasks of a head for the whole input: one class, several labels, or a number."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.outputs import to_float32
from expound.models.tasks.base import Task, require_labels


class Classification(Task):
    """Classification into one of C classes."""

    name = "classification"
    has_contrasts = True
    properties: ClassVar = Task.properties | {"labels", "classes"}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax over the classes, in float32 at least."""
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class MultiLabel(Task):
    """Classification with C labels, each on or off; the predicted target is the most likely label."""

    name = "multi_label"
    has_contrasts = True
    properties: ClassVar = frozenset({"decisions", "labels"})

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the sigmoid of every label's logit."""
        return to_float32(logits).sigmoid()

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the log-probability [..., B] that the target is on."""
        # logsigmoid, since the logarithm of a sigmoid is −∞ for small logits.
        return self.pick(F.logsigmoid(to_float32(logits)), target)

    def log_distributions(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities [..., C, 2] that each label is on and off."""
        # log σ(z) and log σ(−z) = log(1 − σ(z)), without a logarithm of 0.
        return F.logsigmoid(torch.stack([logits, -logits], -1))

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean binary cross-entropy over the labels [B]."""
        logits = to_float32(logits)
        labels = require_labels(batch).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)


class Regression(Task):
    """Prediction of a number. The target is output 0, and its "probability" is the number itself."""

    name = "regression"
    predicts_number = True
    properties: ClassVar = frozenset({"one_target"})

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the values unchanged."""
        return logits

    def target_from_labels(self, labels: Tensor) -> Tensor:
        """Return output 0 for every example."""
        return torch.zeros_like(labels, dtype=torch.long)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return output 0 for every example."""
        return logits.new_zeros(len(logits), dtype=torch.long)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Raise ExpoundError: a number has no probability."""
        raise ExpoundError("a regression has no probability: what compares probabilities needs classes or spans")

    def log_distributions(self, logits: Tensor) -> Tensor:
        """Raise ExpoundError: a number has no probability."""
        return self.log_probability(logits, logits)

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the squared error [B]."""
        values = to_float32(logits).squeeze(-1)
        return (values - require_labels(batch).to(values.dtype)).square()
