"""Beam search for the best order in which to remove units, for many examples in the same passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Beam:
    """The best orders found for one example, all of the same length.

    `removed` [K, n]: the units that each of K orders has removed. `removed_at` [K, n]: the step at which it removed
    them. `total_gain` [K]: the sum of the gains of all beginnings of an order. Of the orders that lead to the same set
    of units only the best is kept, so that a beam as wide as the number of sets finds the best order of all.
    """

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = count, width
        self.removed = np.zeros((1, count), np.bool_)
        self.removed_at = np.full((1, count), count - 1)
        self.total_gain = np.zeros(1)
        self._candidates: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def extend(self) -> NDArray[np.bool_]:
        """Return every set [M, n] with one more removed unit; M is 0 once all units but one are removed."""
        if self.removed[0].sum() >= self.count - 1:
            self._candidates = None
            return self.removed[:0]
        parent, unit = np.nonzero(~self.removed)
        sets = self.removed[parent]
        sets[np.arange(len(unit)), unit] = True
        # Sorted by gain before `unique` takes the first of equal sets: the best order to each set remains.
        best = np.argsort(-self.total_gain[parent], kind="stable")
        _, first = np.unique(np.packbits(sets[best], axis=1), axis=0, return_index=True)
        selected = best[np.sort(first)]
        self._candidates = parent[selected], unit[selected]
        return sets[selected]

    def prune(self, gains: NDArray[np.float64]) -> None:
        """Keep the best of the orders that `extend` returned last, given the gain of each of their sets."""
        if self._candidates is None:
            return
        parent, unit = self._candidates
        total_gain = self.total_gain[parent] + gains
        best = np.argsort(-total_gain, kind="stable")[: self.width]
        parent, unit, row = parent[best], unit[best], np.arange(len(best))
        step = int(self.removed[0].sum())
        self.removed, self.removed_at = self.removed[parent], self.removed_at[parent]
        self.total_gain = total_gain[best]
        self.removed[row, unit], self.removed_at[row, unit] = True, step

    def ranks(self) -> NDArray[np.float64]:
        """Return the ranks [n] by the best order: n − 1 for the unit removed first, 0 for the last."""
        ranks: NDArray[np.float64] = (self.count - 1 - self.removed_at[np.argmax(self.total_gain)]).astype(np.float64)
        return ranks


def run_beams(beams: Sequence[Beam], gains: Callable[[Tensor], NDArray[np.float64]]) -> None:
    """Extend all beams unit by unit until their orders contain all units but one.

    Args:
        beams: one for each of B examples.
        gains: returns the gain [B, M] of removing sets of units [M, B, U]; examples with fewer sets get empty ones.
    """
    width = max(beam.count for beam in beams)
    for _ in range(width - 1):
        sets_of = [beam.extend() for beam in beams]
        values = gains(_stack_sets(sets_of, width))
        for beam, sets, row in zip(beams, sets_of, values, strict=True):
            beam.prune(row[: len(sets)])


def _stack_sets(sets_of: Sequence[NDArray[np.bool_]], width: int) -> Tensor:
    """Return the sets of all examples as [M, B, width], padded with the empty set."""
    grid = torch.zeros(max(1, *(len(sets) for sets in sets_of)), len(sets_of), width, dtype=torch.bool)
    for column, sets in enumerate(sets_of):
        grid[: len(sets), column, : sets.shape[1]] = torch.from_numpy(sets)
    return grid
