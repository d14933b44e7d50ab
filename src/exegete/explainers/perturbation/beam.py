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

    def __init__(self, count: int, beam_width: int) -> None:
        self.count, self.beam_width = count, beam_width
        self.removed = np.zeros((1, count), np.bool_)
        self.removed_at = np.full((1, count), count - 1)
        self.total_gain = np.zeros(1)
        self._next: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def extend(self) -> NDArray[np.bool_]:
        """[M, n] Every set that is one unit larger, from the best of the orders that lead to it; none of everything."""
        if self.removed[0].sum() >= self.count - 1:
            self._next = None
            return self.removed[:0]
        parent, unit = np.nonzero(~self.removed)
        sets = self.removed[parent]
        sets[np.arange(len(unit)), unit] = True
        best = np.argsort(-self.total_gain[parent], kind="stable")
        _, first = np.unique(np.packbits(sets[best], axis=1), axis=0, return_index=True)
        chosen = best[np.sort(first)]
        self._next = parent[chosen], unit[chosen]
        return sets[chosen]

    def keep(self, gains: NDArray[np.float64]) -> None:
        """Keeps the best of the orders last asked about, given what each of their sets gains."""
        if self._next is None:
            return
        parent, unit = self._next
        total_gain = self.total_gain[parent] + gains
        best = np.argsort(-total_gain, kind="stable")[: self.beam_width]
        parent, unit, each = parent[best], unit[best], np.arange(len(best))
        depth = int(self.removed[0].sum())
        self.removed, self.removed_at, self.total_gain = self.removed[parent], self.removed_at[parent], total_gain[best]
        self.removed[each, unit], self.removed_at[each, unit] = True, depth

    def ranks(self) -> NDArray[np.float64]:
        """[n] n − 1 for the unit that goes first, 0 for the one that goes last."""
        ranks: NDArray[np.float64] = (self.count - 1 - self.removed_at[np.argmax(self.total_gain)]).astype(np.float64)
        return ranks


def run_beams(beams: Sequence[Beam], gains: Callable[[Tensor], NDArray[np.float64]]) -> None:
    """Extends all beams unit by unit until their orders hold all units but one.

    Args:
        beams: one for each of B examples.
        gains: what taking sets of units [M, B, U] away gains, [B, M]; an example with fewer sets gets empty ones.
    """
    width = max(beam.count for beam in beams)
    for _ in range(width - 1):
        extend = [beam.extend() for beam in beams]
        found = gains(_stack_sets(extend, width))
        for beam, sets, gain in zip(beams, extend, found, strict=True):
            beam.keep(gain[: len(sets)])


def _stack_sets(sets: Sequence[NDArray[np.bool_]], width: int) -> Tensor:
    """[M, B, width]; an example with fewer sets asks about the empty one."""
    grid = torch.zeros(max(1, *(len(one) for one in sets)), len(sets), width, dtype=torch.bool)
    for column, one in enumerate(sets):
        grid[: len(one), column, : one.shape[1]] = torch.from_numpy(one)
    return grid
