"""Words or tokens as the units that a perturbation takes away."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from exegete.errors import unknown
from exegete.models import Batch

Granularity = Literal["word", "token"]


def units(batch: Batch, granularity: Granularity) -> Tensor:
    """[B, L] The number of each content position's unit, from 0 without gaps within an example; -1 outside content."""
    if granularity == "token":
        return torch.where(batch.content, batch.content.long().cumsum(1) - 1, -1)
    if granularity != "word":
        raise unknown("granularity", granularity, ("word", "token"))
    words = torch.where(batch.content, batch.word_of, -1)
    present = torch.zeros(len(batch), int(words.max()) + 2, dtype=torch.long, device=batch.device)
    present.scatter_(1, words + 1, 1)
    present[:, 0] = 0
    return torch.where(words >= 0, (present.cumsum(1) - 1).gather(1, words + 1), -1)


def spread(scores: Tensor, unit: Tensor) -> Tensor:
    """Scores of units [B, U] to positions [B, L], a unit's score shared equally by its positions; 0 without a unit."""
    inside = unit >= 0
    index = unit.clamp(min=0)
    size = torch.zeros_like(scores).scatter_add_(1, index, inside.to(scores.dtype))
    return (scores / size.clamp(min=1)).gather(1, index) * inside
