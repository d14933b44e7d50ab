"""Packing of rows of uneven length into passes of a limited number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def pack_by_tokens(lengths: Sequence[int], budget: int, *, uniform: bool = False) -> Iterator[slice]:
    """Yield consecutive slices of rows, each of at most `budget` padded tokens.

    A pass that is half full ends where the rows get shorter: without padding there is no mask to apply either.

    Args:
        lengths: the rows' lengths, longest first.
        budget: padded tokens per pass; a longer row gets a pass of its own.
        uniform: put only rows of one length into a pass, however small it is.
    """
    start = 0
    while start < len(lengths):
        longest = max(1, lengths[start])
        most = min(start + max(1, budget // longest), len(lengths))
        least = start if uniform else start + budget // (2 * longest)
        stop = max(least, start + 1)
        while stop < most and lengths[stop] == lengths[stop - 1]:
            stop += 1
        stop = min(stop, most)
        yield slice(start, stop)
        start = stop


def pack_by_padding(lengths: Sequence[int], budget: int, overhead: int) -> Iterator[slice]:
    """Yield slices like `pack_by_tokens`, in which a row's padding never costs more than a pass of its own.

    Args:
        lengths: the rows' lengths, longest first.
        budget: padded tokens per pass.
        overhead: the number of tokens that cost as much as one more pass.
    """
    start = 0
    for row in range(1, len(lengths) + 1):
        is_full = (row - start + 1) * lengths[start] > budget
        if row == len(lengths) or is_full or lengths[start] - lengths[row] > overhead:
            yield slice(start, row)
            start = row
