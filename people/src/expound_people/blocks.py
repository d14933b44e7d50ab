"""Cyclic, nearly balanced incomplete block designs: which of many methods an annotator sees on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from math import gcd

import numpy as np

from expound.errors import ExpoundError

SCREEN_SIZE = 4
"""Default number of explanations on a screen: annotators cannot rank many at once."""
MAX_SEARCH_FACTOR = 4
"""The search tries at most this many times the smallest number of base blocks that can be balanced."""


@dataclass(frozen=True)
class BlockDesign:
    """A cyclic block design: base blocks of method numbers, which are shifted to make the screens.

    On as many screens as there are methods, an annotator sees each method equally often. Over as many annotators as
    there are bases, all pairs of methods meet equally often if the search finds such bases (one for 7 methods by 3 and
    for 13 by 4, 11 for 12 by 4), else nearly so.
    """

    methods: int
    bases: tuple[tuple[int, ...], ...]

    @classmethod
    def for_methods(cls, methods: int, screen: int = SCREEN_SIZE) -> BlockDesign:
        """Return the design for screens of this size; all methods share a screen if they fit."""
        if screen < 2 or methods < 1:
            raise ExpoundError(f"expected a method or more and screens of 2 or more, got {methods} and {screen}")
        return cls(methods, (tuple(range(methods)),) if methods <= screen else _find_base_blocks(methods, screen))

    def get_methods(self, person: int, item: int) -> list[int]:
        """Return the sorted numbers of the methods that an annotator sees of an item; both count from 0."""
        base = self.bases[(person + item // self.methods) % len(self.bases)]
        return sorted((place + person + item) % self.methods for place in base)


# Cached because pages ask for the same design on every request, and the search is slow for many methods.
@cache
def _find_base_blocks(methods: int, screen: int) -> tuple[tuple[int, ...], ...]:
    """Search base blocks greedily: add the block whose differences are rarest so far, until all are equally frequent.

    In a cyclic design two methods meet as often as their difference modulo `methods` occurs in the base blocks (Bose
    1939, the method of differences), so equal frequencies mean balance.
    """
    # Blocks that are shifts of each other give the same screens, so only those that contain method 0 are tried.
    candidates = [(0, *rest) for rest in combinations(range(1, methods), screen - 1)]
    differences = np.array([_count_differences(candidate, methods) for candidate in candidates])
    # b blocks have b k (k - 1) differences, which have to divide evenly among the v - 1 possible ones.
    smallest = (methods - 1) // gcd(methods - 1, screen * (screen - 1))
    seen, blocks, best = np.zeros(methods - 1), [], (np.inf, 0)
    for count in range(1, MAX_SEARCH_FACTOR * smallest + 1):
        costs = ((seen + differences) ** 2).sum(1)
        chosen = int(np.argmin(costs))
        seen = seen + differences[chosen]
        blocks.append(candidates[chosen])
        imbalance = float(np.ptp(seen) / seen.mean())
        best = min(best, (imbalance, count))
        if imbalance == 0:
            break
    return tuple(blocks[: best[1]])


def _count_differences(block: tuple[int, ...], methods: int) -> list[int]:
    differences = [(first - second) % methods for first, second in permutations(block, 2)]
    counts: list[int] = np.bincount(differences, minlength=methods)[1:].tolist()
    return counts
