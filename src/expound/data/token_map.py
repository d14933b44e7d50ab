"""Mapping between the tokens of two tokenizers, along the characters of the text that both have read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from expound.data.alignment import Alignment, TokenSpan
from expound.errors import ExpoundError


def map_tokens(source: Alignment, target: Alignment) -> list[list[int]]:
    """Return for every token of `target` the tokens of `source` that share a character with it, in order.

    A token without a shared character (white space, a dropped accent) gets the tokens of its nearest neighbors on both
    sides. Special tokens, and tokens of text that was truncated in `source`, are left out. Equal tokenizations map each
    token to itself.

    Raises:
        ExpoundError: the alignments are of different texts.
    """
    if source.texts != target.texts:
        raise ExpoundError("token scores can only move between tokenizations of the same text")
    mapping: list[list[int]] = [[] for _ in target.spans]
    if (source.tokens, source.spans) == (target.tokens, target.spans):
        # without this, tokens of white space would get their neighbors instead of themselves
        for index, span in enumerate(target.spans):
            if span is not None:
                mapping[index] = [index]
        return mapping
    for side in range(len(target.texts)):
        source_tokens, target_tokens = _tokens_of_text(source, side), _tokens_of_text(target, side)
        source_spans, target_spans = list(source_tokens.values()), list(target_tokens.values())
        overlaps = list(_find_overlaps(source_spans, target_spans))
        end = None
        if source.truncated:
            end = max((span[2] for span in source_spans), default=0)
        filled = _fill_from_neighbors(overlaps, end, target_spans)
        positions = list(source_tokens)
        for position, indices in zip(target_tokens, filled, strict=True):
            mapping[position] = [positions[index] for index in indices]
    return mapping


def _tokens_of_text(alignment: Alignment, side: int) -> dict[int, TokenSpan]:
    """Return the spans of the tokens of one text by their positions."""
    return {i: span for i, span in enumerate(alignment.spans) if span is not None and span[0] == side}


def _find_overlaps(source: Sequence[TokenSpan], target: Sequence[TokenSpan]) -> Iterator[list[int]]:
    """Yield for each target span the indices of the source spans that overlap it; both are in the order of the text."""
    first = 0
    for _, start, end in target:
        # source spans that end before this one also end before all later ones, so the search is linear in both
        while first < len(source) and source[first][2] <= start:
            first += 1
        indices, index = [], first
        while index < len(source) and source[index][1] < end:
            if source[index][2] > start and end > start:
                indices.append(index)
            index += 1
        yield indices


def _fill_from_neighbors(rows: list[list[int]], end: int | None, spans: Sequence[TokenSpan]) -> list[list[int]]:
    """Replace empty rows by the nearest rows before and after, unless their spans begin at `end` or later."""
    after: list[list[int]] = []
    nearest: list[int] = []
    for row in reversed(rows):
        nearest = row or nearest
        after.append(nearest)
    filled, before = [], list[int]()
    for row, following, (_, start, _) in zip(rows, reversed(after), spans, strict=True):
        before = row or before
        is_truncated = end is not None and start >= end
        if not row and not is_truncated:
            filled.append(list(dict.fromkeys([*before, *following])))
        else:
            filled.append(row)
    return filled
