"""The rank of the explained answer among all answers of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from exegete.models import Batch
from exegete.models.tasks import Generation, Task


class TargetRank(Task):
    """A task whose score is the number of outputs that are likelier than the target's.

    For a target of several tokens, or of a start and an end, it is the largest of their numbers.

    Args:
        task: the task that the target belongs to.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.name = task.name  # type: ignore[misc]

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the task's own logits; for generated text the rank of each response token [B, R]."""
        if not isinstance(self.task, Generation):
            return self.task.logits(output, batch)
        # Ranks are counted here, where the logits of the whole vocabulary still exist.
        full, ids, real = self.task.read_logits(output, batch)
        return (full > full.gather(-1, ids)).sum(-1) * real

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the logits: ranks have no probabilities."""
        return logits

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the number of likelier outputs: [B]."""
        if isinstance(self.task, Generation):
            step = torch.arange(logits.shape[1], device=logits.device)
            inside = (step >= target[:, :1]) & (step < target[:, 1:])
            return (logits * inside).amax(1)
        places = target if target.ndim > 1 else target[:, None]
        rows = logits if logits.ndim > 2 else logits[:, None]
        return (rows > rows.gather(2, places[..., None])).sum(2).amax(1)
