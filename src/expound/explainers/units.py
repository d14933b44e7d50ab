"""Units of a text that are scored or removed (tokens, words, sentences, paragraphs, texts), and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.alignment import (
    TokenSpan,
    find_paragraph_ends,
    find_part_of_tokens,
    find_sentence_ends,
    find_span_of_tokens,
    find_text_of_tokens,
)
from expound.data.spans import CONVERSATION_UNITS, Spans, UnitName
from expound.errors import ExpoundError, unknown
from expound.models import Batch
from expound.reports.records import Unit

ENDS = {"sentence": find_sentence_ends, "paragraph": find_paragraph_ends, "thought": find_sentence_ends}


class Units(NamedTuple):
    """The U units of an example, and the `number` [L] of each position's unit, -1 outside of units."""

    units: tuple[Unit, ...]
    number: Tensor


def number_units(batch: Batch, unit: UnitName) -> Tensor:
    """Return the number of each content position's unit [B, L], from 0 without gaps per example; -1 outside content.

    A source is one text: a document or a turn of a prompt, a side of a pair. `Batch.unit_of`, if set, defines the
    sources (and, for batches of token ids without alignment, the sentences). A message is one text of a conversation.

    Raises:
        ExpoundError: an unknown unit, sentences and sources of token ids without `unit_of`, or a conversation without
            any unit of this kind.
    """
    if unit not in get_args(UnitName):
        raise unknown("unit", unit, get_args(UnitName))
    if unit == "token":
        return torch.where(batch.content, batch.content.long().cumsum(1) - 1, -1)
    numbers = batch.word_of
    if unit != "word":
        numbers = _number_larger_units(batch, unit)
    numbers = torch.where(batch.content, numbers, -1)
    # Truncation and special tokens leave gaps in the numbers. Each number becomes its rank among those present, as the
    # cumulative sum of a table of presence; column 0 is for -1.
    present = torch.zeros(len(batch), int(numbers.max()) + 2, dtype=torch.long, device=batch.device)
    present.scatter_(1, numbers + 1, 1)
    present[:, 0] = 0
    return torch.where(numbers >= 0, (present.cumsum(1) - 1).gather(1, numbers + 1), -1)


def _number_larger_units(batch: Batch, unit: UnitName) -> Tensor:
    """Return the number of each position's sentence, paragraph or text [B, L]."""
    if unit in CONVERSATION_UNITS and batch.exchanges is None:
        raise ExpoundError(
            f"unit={unit!r} is about conversations: load a model with task='generation', give 'messages'"
        )
    if batch.unit_of is not None and (unit == "source" or batch.alignments is None):
        return batch.unit_of
    if batch.alignments is None:
        raise ExpoundError(f"nothing says which {unit} a position belongs to: give the batch unit_of")
    units = torch.full_like(batch.word_of, -1)
    for number, (row, attended, alignment) in enumerate(zip(units, batch.attended, batch.alignments, strict=True)):
        sides = find_text_of_tokens(alignment)
        numbers = find_part_of_tokens(alignment, ENDS[unit]) if unit in ENDS else sides
        if unit in CONVERSATION_UNITS and batch.exchanges is not None:
            texts = batch.exchanges[number].select_texts(unit)
            numbers = [own if side in texts else -1 for own, side in zip(numbers, sides, strict=True)]
            if max(numbers, default=-1) < 0:
                advice = f"{unit.replace('_', ' ')}: the messages have none, or the chat template leaves it out"
                raise ExpoundError(f"example {number} shows no {advice}")
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


def list_units(batch: Batch, unit: UnitName) -> Units:
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
        if unit in ("source", "message", "tool_result") and batch.exchanges is not None:
            name = batch.exchanges[0].names[side]
        # A token may cover no characters, as a piece of a byte sequence.
        units.append(Unit(name or alignment.tokens[inside[0]], side, start, end))
    return Units(tuple(units), number)


def read_spans(unit: Spans | Sequence[Spans], count: int) -> list[Spans]:
    """Return the spans of each of `count` examples, given a list of spans for one or a list of lists.

    Raises:
        ExpoundError: another number of lists.
    """
    lists: Any = list(unit)
    # A list of spans begins with a span, whose first value is a number.
    if count == 1 and lists and isinstance(lists[0], Sequence) and isinstance(next(iter(lists[0]), None), Integral):
        lists = [lists]
    if len(lists) != count:
        raise ExpoundError(
            f"unit is a name or a list of spans (start, end) for each of {count} examples, not {unit!r:.80}"
        )
    return cast(list[Spans], lists)


def place_spans(batch: Batch, spans: Spans, index: int) -> Units:
    """Return the spans of a batch of one example as units in their order; those that truncation cut off are left out.

    Raises:
        ExpoundError: what is no span of the example's texts, spans that overlap, or one without a token of its own.
    """
    if batch.alignments is None:
        raise ExpoundError(f"example {index} has no text that spans could be of: leave unit out")
    (alignment,) = batch.alignments
    found = _check_spans(spans, alignment.texts, index)
    row = torch.full_like(batch.word_of[0], -1)
    row[batch.attended[0]] = torch.tensor(find_span_of_tokens(alignment, found), device=batch.device)
    row = torch.where(batch.content[0], row, -1).cpu()
    last = [0] * len(alignment.texts)
    for token in alignment.spans:
        if token is not None:
            last[token[0]] = max(last[token[0]], token[2])
    units, number = list[Unit](), torch.full_like(row, -1)
    for place, (segment, start, end) in enumerate(found):
        name = alignment.texts[segment][start:end]
        if (row == place).any():
            number[row == place] = len(units)
            units.append(Unit(name, segment, start, end))
        elif not (alignment.truncated and start >= last[segment]):
            raise ExpoundError(
                f"the span ({start}, {end}) of example {index}, {name!r:.40}, has no token: make it longer"
            )
    return Units(tuple(units), number)


def _check_spans(spans: Any, texts: Sequence[str], index: int) -> list[TokenSpan]:
    """Return spans as (number of the text, start, end)."""
    expected = "(start, end)" if len(texts) == 1 else "(number of the text, start, end)"
    found = list[TokenSpan]()
    for span in spans if isinstance(spans, Sequence) else [spans]:
        values = tuple(span) if isinstance(span, Sequence) else ()
        if len(values) == 2 and len(texts) == 1:
            values = (0, *values)
        if len(values) != 3 or not all(isinstance(value, Integral) for value in values):
            raise ExpoundError(f"a span of example {index} is {expected}, whole numbers, not {span!r:.40}")
        segment, start, end = map(int, values)
        if not (0 <= segment < len(texts) and 0 <= start < end <= len(texts[segment])):
            sizes = " and ".join(str(len(text)) for text in texts)
            raise ExpoundError(
                f"the span {span} of example {index} is empty or outside: its text has {sizes} characters, end excluded"
            )
        for other in found:
            if other[0] == segment and start < other[2] and other[1] < end:
                raise ExpoundError(
                    f"the spans {other[1:]} and {(start, end)} of example {index} overlap: cut one of them"
                )
        found.append((segment, start, end))
    if not found:
        raise ExpoundError(f"example {index} has no span: give at least one {expected}")
    return found


def find_strongest_pairs(pairs: NDArray[np.float64]) -> tuple[tuple[int, int, float], ...]:
    """Return the ten pairs (i, j, value), i < j, of largest magnitude in a symmetric matrix, without zeros."""
    first, second = np.triu_indices(len(pairs), 1)
    values = pairs[first, second]
    order = np.argsort(-np.abs(values), kind="stable")[:10]
    return tuple((int(first[at]), int(second[at]), float(values[at])) for at in order if values[at])


def sum_units(scores: Tensor, content: Tensor, units: Units) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return sums of the content's scores [T, L] over units, [T, U], and over content of no unit, [T], for one example.

    White space between words, and texts that are no source, are in no unit.
    """
    count = len(units.units)
    # What is no content goes to a last column, which is dropped.
    number = torch.where(content, torch.where(units.number < 0, count, units.number), count + 1)
    total = scores.new_zeros(len(scores), count + 2).index_add_(1, number, scores).numpy().astype(np.float32)
    return total[:, :count], total[:, count]
