"""Units of a text that are scored or removed: tokens, words, sentences, paragraphs or whole texts."""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.data.sentences import find_paragraph_ends, find_part_of_tokens, find_sentence_ends, find_text_of_tokens
from exegete.errors import ExegeteError, check_choice
from exegete.models import Batch
from exegete.reports.records import Unit

ENDS = {"sentence": find_sentence_ends, "paragraph": find_paragraph_ends}


class Units(NamedTuple):
    """The U units of an example, and the `number` [L] of each position's unit, -1 outside of units."""

    units: tuple[Unit, ...]
    number: Tensor


def number_units(batch: Batch, granularity: Granularity) -> Tensor:
    """Return the number of each content position's unit [B, L], from 0 without gaps per example; -1 outside content.

    A source is one text: a document or a turn of a prompt, a side of a pair. `Batch.unit_of`, if set, defines the
    sources (and, for batches of token ids without alignment, the sentences).

    Raises:
        ExegeteError: an unknown granularity, or sentences and sources of token ids without `unit_of`.
    """
    check_choice("granularity", granularity, get_args(Granularity))
    if granularity == "token":
        return torch.where(batch.content, batch.content.long().cumsum(1) - 1, -1)
    numbers = batch.word_of
    if granularity != "word":
        numbers = _number_larger_units(batch, granularity)
    numbers = torch.where(batch.content, numbers, -1)
    # Truncation and special tokens leave gaps in the numbers. Each number becomes its rank among those present, as the
    # cumulative sum of a table of presence; column 0 is for -1.
    present = torch.zeros(len(batch), int(numbers.max()) + 2, dtype=torch.long, device=batch.device)
    present.scatter_(1, numbers + 1, 1)
    present[:, 0] = 0
    return torch.where(numbers >= 0, (present.cumsum(1) - 1).gather(1, numbers + 1), -1)


def _number_larger_units(batch: Batch, granularity: Granularity) -> Tensor:
    """Return the number of each position's sentence, paragraph or text [B, L]."""
    if batch.unit_of is not None and (granularity == "source" or batch.alignments is None):
        return batch.unit_of
    if batch.alignments is None:
        raise ExegeteError(f"nothing says which {granularity} a position belongs to: give the batch unit_of")
    units = torch.full_like(batch.word_of, -1)
    for row, attended, alignment in zip(units, batch.attended, batch.alignments, strict=True):
        is_source = granularity == "source"
        numbers = find_text_of_tokens(alignment) if is_source else find_part_of_tokens(alignment, ENDS[granularity])
        row[attended] = torch.tensor(numbers, device=batch.device)
    return units


def spread(scores: Tensor, unit: Tensor) -> Tensor:
    """Return scores of positions [B, L] from units' scores [B, U], shared equally by a unit's positions; 0 outside."""
    inside = unit >= 0
    index = unit.clamp(min=0)
    size = torch.zeros_like(scores).scatter_add_(1, index, inside.to(scores.dtype))
    return (scores / size.clamp(min=1)).gather(1, index) * inside


def unit_membership(unit: Tensor) -> Tensor:
    """Return whether each position belongs to each unit, from unit numbers [B, L]: [B, L, U] bool."""
    return unit[..., None] == torch.arange(int(unit.max()) + 1, device=unit.device)


def sum_by_unit(scores: Tensor, unit: Tensor) -> Tensor:
    """Return sums [B, U] of scores [B, L] over the positions of each unit."""
    # Unit -1 adds to column 0, which is dropped.
    count = int(unit.max()) + 1
    return scores.new_zeros(len(unit), count + 1).scatter_add(1, unit + 1, scores)[:, 1:]


def list_units(batch: Batch, unit: Granularity) -> Units:
    """Return the units of a batch of one example with an alignment."""
    (alignment,) = batch.alignments or ()
    number = number_units(batch, unit)[0].cpu()
    positions: list[list[int]] = [[] for _ in range(int(number.max()) + 1)]
    for position, own in enumerate(number.tolist()):
        if own >= 0:
            positions[own].append(position)
    units = []
    for inside in positions:
        spans = [alignment.spans[position] for position in inside]
        extents = [span for span in spans if span is not None]
        side = extents[0][0]
        start, end = min(span[1] for span in extents), max(span[2] for span in extents)
        name = alignment.texts[side][start:end]
        if unit == "source" and batch.exchanges is not None:
            name = batch.exchanges[0].names[side]
        # A token may cover no characters, as a piece of a byte sequence.
        units.append(Unit(name or alignment.tokens[inside[0]], side, start, end))
    return Units(tuple(units), number)


def find_strongest_pairs(pairs: NDArray[np.float64], most: int = 10) -> tuple[tuple[int, int, float], ...]:
    """Return the `most` pairs (i, j, value), i < j, of largest magnitude in a symmetric matrix, without zeros."""
    first, second = np.triu_indices(len(pairs), 1)
    values = pairs[first, second]
    order = np.argsort(-np.abs(values), kind="stable")[:most]
    return tuple((int(first[at]), int(second[at]), float(values[at])) for at in order if values[at])
