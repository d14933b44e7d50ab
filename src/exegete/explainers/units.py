"""Words, tokens, sentences, paragraphs or whole texts as the units that a perturbation takes away."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.data.sentences import paragraph_ends, part_of_tokens, sentence_ends, text_of_tokens
from exegete.errors import ExegeteError, unknown
from exegete.models import Batch

ENDS = {"sentence": sentence_ends, "paragraph": paragraph_ends}


def number_units(batch: Batch, granularity: Granularity) -> Tensor:
    """[B, L] The number of each content position's unit, from 0 without gaps within an example; -1 outside content.

    A source is a text: a document or a turn of a prompt, a side of a pair. `Batch.unit_of`, where it is given, says
    what sources are (and sentences, of ids made elsewhere).

    Raises:
        ExegeteError: an unknown granularity, or sentences and sources of ids made elsewhere without `unit_of`.
    """
    if granularity not in get_args(Granularity):
        raise unknown("granularity", granularity, get_args(Granularity))
    if granularity == "token":
        return torch.where(batch.content, batch.content.long().cumsum(1) - 1, -1)
    numbers = batch.word_of if granularity == "word" else _number_larger_units(batch, granularity)
    numbers = torch.where(batch.content, numbers, -1)
    present = torch.zeros(len(batch), int(numbers.max()) + 2, dtype=torch.long, device=batch.device)
    present.scatter_(1, numbers + 1, 1)
    present[:, 0] = 0
    return torch.where(numbers >= 0, (present.cumsum(1) - 1).gather(1, numbers + 1), -1)


def _number_larger_units(batch: Batch, granularity: Granularity) -> Tensor:
    """[B, L] Numbers of sentences, paragraphs or texts."""
    if batch.unit_of is not None and (granularity == "source" or batch.alignments is None):
        return batch.unit_of
    if batch.alignments is None:
        raise ExegeteError(f"nothing says which {granularity} a position belongs to: give the batch unit_of")
    found = torch.full_like(batch.word_of, -1)
    for row, attended, alignment in zip(found, batch.attended, batch.alignments, strict=True):
        numbers = text_of_tokens(alignment) if granularity == "source" else part_of_tokens(alignment, ENDS[granularity])
        row[attended] = torch.tensor(numbers, device=batch.device)
    return found


def spread(scores: Tensor, unit: Tensor) -> Tensor:
    """Scores of units [B, U] to positions [B, L], a unit's score shared equally by its positions; 0 without a unit."""
    inside = unit >= 0
    index = unit.clamp(min=0)
    size = torch.zeros_like(scores).scatter_add_(1, index, inside.to(scores.dtype))
    return (scores / size.clamp(min=1)).gather(1, index) * inside


def unit_membership(unit: Tensor) -> Tensor:
    """[B, L, U] bool: whether a position is part of each unit."""
    return unit[..., None] == torch.arange(int(unit.max()) + 1, device=unit.device)


def sum_by_unit(scores: Tensor, unit: Tensor) -> Tensor:
    """[B, U] Sums of scores [B, L] over the positions of each unit."""
    count = int(unit.max()) + 1
    return scores.new_zeros(len(unit), count + 1).scatter_add(1, unit + 1, scores)[:, 1:]
