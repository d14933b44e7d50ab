"""Packing of rows of uneven length into passes of a limited number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

# A GPU needs many more tokens per pass than a CPU to be busy.
TOKENS_PER_PASS = {"cpu": 1536, "cuda": 65536}


def get_token_budget(device: torch.device) -> int:
    """Return the padded tokens of a pass without gradients to the weights on a device."""
    return TOKENS_PER_PASS.get(device.type, TOKENS_PER_PASS["cuda"])


def pack(lengths: Sequence[int], budget: int, overhead: int | None = None) -> Iterator[slice]:
    """Yield consecutive slices of rows, each of at most `budget` padded tokens.

    Args:
        lengths: the rows' lengths, longest first.
        budget: padded tokens per pass; a longer row gets a pass of its own.
        overhead: the most tokens that a row is padded by, as many as cost as much as one more pass. By default a pass
            that is half full ends where the rows get shorter: without padding there is no mask to apply either.
    """
    start = 0
    while start < len(lengths):
        longest = max(1, lengths[start])
        half = start + budget // (2 * longest)
        most = min(start + max(1, budget // longest), len(lengths))
        stop = start + 1
        while stop < most:
            if overhead is None:
                joins = stop < half or lengths[stop] == lengths[stop - 1]
            else:
                joins = longest - lengths[stop] <= overhead
            if not joins:
                break
            stop += 1
        yield slice(start, stop)
        start = stop
