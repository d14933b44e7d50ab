"""Where one tokenizer's tokens are among another's: scores move from model to model along the characters of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exegete.data.alignment import Alignment, TokenSpan
from exegete.errors import ExegeteError


def map_tokens(source: Alignment, target: Alignment) -> list[list[int]]:
    """For every token of `target` the tokens of `source` that share a character of the same text with it, in order.

    A token that holds no character that any source token holds (white space, a dropped accent) has those of the
    nearest tokens before and after it that have some. Special tokens have none, nor have tokens of a stretch that
    `source` does not reach because it was cut off. Equal tokenizations give each token itself.

    Raises:
        ExegeteError: the alignments are of different texts.
    """
    if source.texts != target.texts:
        raise ExegeteError("token scores can only move between tokenizations of the same text")
    if (source.tokens, source.spans) == (target.tokens, target.spans):
        return [[] if span is None else [index] for index, span in enumerate(target.spans)]
    found: list[list[int]] = [[] for _ in target.spans]
    for side in range(len(target.texts)):
        there, here = _tokens_of_text(source, side), _tokens_of_text(target, side)
        rows = list(_find_overlaps([span for _, span in there], [span for _, span in here]))
        filled = _fill_from_neighbours(
            rows, _last_character(there) if source.truncated else None, [span for _, span in here]
        )
        for (position, _), row in zip(here, filled, strict=True):
            found[position] = [there[index][0] for index in row]
    return found


def _tokens_of_text(alignment: Alignment, side: int) -> list[tuple[int, TokenSpan]]:
    """The tokens of one text with their positions."""
    return [(i, span) for i, span in enumerate(alignment.spans) if span is not None and span[0] == side]


def _find_overlaps(there: Sequence[TokenSpan], here: Sequence[TokenSpan]) -> Iterator[list[int]]:
    """For each span of `here` the indices of those of `there` that overlap it; both stand in the order of the text."""
    first = 0
    for _, start, end in here:
        while first < len(there) and there[first][2] <= start:
            first += 1
        row, index = [], first
        while index < len(there) and there[index][1] < end:
            if there[index][2] > start and end > start:
                row.append(index)
            index += 1
        yield row


def _last_character(there: Sequence[tuple[int, TokenSpan]]) -> int:
    """The character at which a tokenization ends."""
    return max((span[2] for _, span in there), default=0)


def _fill_from_neighbours(rows: list[list[int]], reach: int | None, here: Sequence[TokenSpan]) -> list[list[int]]:
    """Empty rows get the nearest rows before and after them, unless they lie beyond `reach`."""
    after: list[list[int]] = []
    nearest: list[int] = []
    for row in reversed(rows):
        nearest = row or nearest
        after.append(nearest)
    filled, before = [], list[int]()
    for row, following, (_, start, _) in zip(rows, reversed(after), here, strict=True):
        before = row or before
        cut = reach is not None and start >= reach
        filled.append(row or ([] if cut else list(dict.fromkeys([*before, *following]))))
    return filled
