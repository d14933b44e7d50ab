"""How many other answers a model finds likelier than the one that is explained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from exegete.models import Batch
from exegete.models.tasks import Generation, Task


class TargetRank(Task):
    """A task whose score is how many outputs come before the target's own: the most over a span's tokens or ends.

    Args:
        task: what the target belongs to.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.name = task.name  # type: ignore[misc]

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """The task's own; of generated text [B, R] how many tokens are likelier than each of the response's."""
        if not isinstance(self.task, Generation):
            return self.task.logits(output, batch)
        full, ids, real = self.task.read(output, batch)
        return (full > full.gather(-1, ids)).sum(-1) * real

    def probabilities(self, logits: Tensor) -> Tensor:
        """There are none."""
        return logits

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """[B]."""
        if isinstance(self.task, Generation):
            step = torch.arange(logits.shape[1], device=logits.device)
            inside = (step >= target[:, :1]) & (step < target[:, 1:])
            return (logits * inside).amax(1)
        places = target if target.ndim > 1 else target[:, None]
        rows = logits if logits.ndim > 2 else logits[:, None]
        return (rows > rows.gather(2, places[..., None])).sum(2).amax(1)
