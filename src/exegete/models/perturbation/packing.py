"""Rows of uneven length in passes of a number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def pack_by_tokens(lengths: Sequence[int], budget: int, *, uniform: bool = False) -> Iterator[slice]:
    """Consecutive slices of rows that are sorted from long to short, each of at most `budget` padded tokens.

    A pass that is half full ends where the rows get shorter: without padding there is no mask to apply either. A row
    longer than the budget gets a pass of its own. `uniform`: no two lengths in one pass, however small it is.
    """
    start = 0
    while start < len(lengths):
        longest = lengths[start]
        most = min(start + max(1, budget // max(1, longest)), len(lengths))
        least = start if uniform else start + budget // (2 * max(1, longest))
        stop = next((row for row in range(max(least, start + 1), most) if lengths[row] != lengths[row - 1]), most)
        yield slice(start, stop)
        start = stop


def pack_by_padding(lengths: Sequence[int], budget: int, overhead: int) -> Iterator[slice]:
    """As `passes`, but a row joins one only where its padding is at most `overhead`, the tokens that a pass costs."""
    start = 0
    for row in range(1, len(lengths) + 1):
        full = (row - start + 1) * lengths[start] > budget
        if row == len(lengths) or full or lengths[start] - lengths[row] > overhead:
            yield slice(start, row)
            start = row
