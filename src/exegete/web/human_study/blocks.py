"""Which of many methods stand on one screen: cyclic, nearly balanced incomplete blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import gcd

import numpy as np

from exegete.errors import ExegeteError

SCREEN_SIZE = 4
"""Explanations on a screen, where nothing else is said: people cannot rank many at once."""
MAX_SEARCH_FACTOR = 4
"""How many times as many base blocks as balance needs at least are tried."""


@dataclass(frozen=True)
class BlockDesign:
    """Base blocks of so many methods; shifted around they are the screens.

    On as many screens as there are methods, a person sees each method equally often. As many people as there are bases
    meet pairs of methods equally often, where a search finds such bases (one for 7 methods by 3 and for 13 by 4, 11 for
    12 by 4), else nearly so.
    """

    methods: int
    bases: tuple[tuple[int, ...], ...]

    @classmethod
    def for_methods(cls, methods: int, screen: int = SCREEN_SIZE) -> BlockDesign:
        """The blocks for screens of this size; all methods, where they are no more."""
        if screen < 2 or methods < 1:
            raise ExegeteError(f"expected a method or more and screens of 2 or more, got {methods} and {screen}")
        return cls(methods, (tuple(range(methods)),) if methods <= screen else _find_base_blocks(methods, screen))

    def get_methods(self, person: int, item: int) -> list[int]:
        """The numbers of the methods that person number so-and-so sees of an item, both counted from 0."""
        base = self.bases[(person + item // self.methods) % len(self.bases)]
        return sorted((place + person + item) % self.methods for place in base)


@cache
def _find_base_blocks(methods: int, screen: int) -> tuple[tuple[int, ...], ...]:
    """Adds the block whose differences are rarest so far, until all differences are equally frequent."""
    choices = [(0, *rest) for rest in combinations(range(1, methods), screen - 1)]
    differences = np.array([_count_differences(choice, methods) for choice in choices])
    least = (methods - 1) // gcd(methods - 1, screen * (screen - 1))
    seen, found, best = np.zeros(methods - 1), [], (np.inf, 0)
    for count in range(1, MAX_SEARCH_FACTOR * least + 1):
        costs = ((seen + differences) ** 2).sum(1)
        chosen = int(np.argmin(costs))
        seen = seen + differences[chosen]
        found.append(choices[chosen])
        uneven = float(np.ptp(seen) / seen.mean())
        best = min(best, (uneven, count))
        if uneven == 0:
            break
    return tuple(found[: best[1]])


def _count_differences(block: tuple[int, ...], methods: int) -> list[int]:
    apart = [(one - other) % methods for one in block for other in block if one != other]
    counts: list[int] = np.bincount(apart, minlength=methods)[1:].tolist()
    return counts
