"""Beam search for the best order in which to take units away, for many examples in the same passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Beam:
    """The orders kept for one example, all of the same length: sets taken [K, n], when [K, n], and worth [K].

    An order's worth is the sum of what each of its beginnings gains. Of the orders that lead to one set of units only
    the best is kept, so that a beam of all sets finds the best order there is.
    """

    def __init__(self, count: int, most: int) -> None:
        self.count, self.most = count, most
        self.taken = np.zeros((1, count), np.bool_)
        self.when = np.full((1, count), count - 1)
        self.worth = np.zeros(1)
        self._next: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def extended(self) -> NDArray[np.bool_]:
        """[M, n] Every set that is one unit larger, from the best of the orders that lead to it; none of everything."""
        if self.taken[0].sum() >= self.count - 1:
            self._next = None
            return self.taken[:0]
        parent, unit = np.nonzero(~self.taken)
        sets = self.taken[parent]
        sets[np.arange(len(unit)), unit] = True
        best = np.argsort(-self.worth[parent], kind="stable")
        _, first = np.unique(np.packbits(sets[best], axis=1), axis=0, return_index=True)
        chosen = best[np.sort(first)]
        self._next = parent[chosen], unit[chosen]
        return sets[chosen]

    def keep(self, gains: NDArray[np.float64]) -> None:
        """Keeps the best of the orders last asked about, given what each of their sets gains."""
        if self._next is None:
            return
        parent, unit = self._next
        worth = self.worth[parent] + gains
        best = np.argsort(-worth, kind="stable")[: self.most]
        parent, unit, each = parent[best], unit[best], np.arange(len(best))
        depth = int(self.taken[0].sum())
        self.taken, self.when, self.worth = self.taken[parent], self.when[parent], worth[best]
        self.taken[each, unit], self.when[each, unit] = True, depth

    def ranks(self) -> NDArray[np.float64]:
        """[n] n − 1 for the unit that goes first, 0 for the one that goes last."""
        ranks: NDArray[np.float64] = (self.count - 1 - self.when[np.argmax(self.worth)]).astype(np.float64)
        return ranks


def grow(beams: Sequence[Beam], gains: Callable[[Tensor], NDArray[np.float64]]) -> None:
    """Extends all beams unit by unit until their orders hold all units but one.

    Args:
        beams: one for each of B examples.
        gains: what taking sets of units [M, B, U] away gains, [B, M]; an example with fewer sets gets empty ones.
    """
    width = max(beam.count for beam in beams)
    for _ in range(width - 1):
        extended = [beam.extended() for beam in beams]
        found = gains(_stacked(extended, width))
        for beam, sets, gain in zip(beams, extended, found, strict=True):
            beam.keep(gain[: len(sets)])


def _stacked(sets: Sequence[NDArray[np.bool_]], width: int) -> Tensor:
    """[M, B, width]; an example with fewer sets asks about the empty one."""
    grid = torch.zeros(max(1, *(len(one) for one in sets)), len(sets), width, dtype=torch.bool)
    for column, one in enumerate(sets):
        grid[: len(one), column, : one.shape[1]] = torch.from_numpy(one)
    return grid
