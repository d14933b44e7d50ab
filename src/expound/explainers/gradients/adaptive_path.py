"""Integrals along paths with Simpson's rule, on intervals that are halved where their error is large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

INITIAL_POINTS = (0.0, 0.125, 0.25, 0.5, 1.0)
SPLIT_SHARE = 0.5
CANCELLATION = 4.0

Evaluate = Callable[[Sequence[int], Sequence[float]], Sequence["PathValue"]]


class PathValue(NamedTuple):
    """The function's value and its slope along the path at a point."""

    score: float
    slope: float


class AdaptivePath:
    """One path from 0 to 1: the points evaluated so far and the intervals between them."""

    def __init__(self) -> None:
        self.values: dict[float, PathValue] = {}
        self.ends = list(INITIAL_POINTS)

    def missing_points(self) -> list[float]:
        """Return the points that the intervals need and that are not evaluated yet."""
        points: set[float] = set()
        for start, end in pairwise(self.ends):
            points.update(point for point, _ in _simpson(start, end))
        return sorted(points - self.values.keys())

    def weights(self) -> dict[float, float]:
        """Return the composite rule's weight of every point; weights sum to 1."""
        total = dict.fromkeys(self.values, 0.0)
        for interval in pairwise(self.ends):
            for point, weight in _simpson(*interval):
                total[point] += weight
        return total

    def errors(self) -> list[float]:
        """Return the signed integration error of each interval."""
        errors = []
        for start, end in pairwise(self.ends):
            integral = sum(weight * self.values[point].slope for point, weight in _simpson(start, end))
            errors.append(integral - (self.values[end].score - self.values[start].score))
        return errors

    def has_converged(self, tolerance: float) -> bool:
        """Return whether |Σ errors| ≤ tolerance · |f(1) − f(0)|, and Σ |errors| at most 4 times that."""
        gaps, allowed = self.errors(), tolerance * abs(self.values[1.0].score - self.values[0.0].score)
        return abs(sum(gaps)) <= allowed and sum(map(abs, gaps)) <= CANCELLATION * allowed

    def halve_intervals(self) -> None:
        """Halve the interval with the largest error, and intervals whose error is nearly as large."""
        gaps = [abs(gap) for gap in self.errors()]
        # Several intervals per round: the new points of one round share passes.
        least, middles = SPLIT_SHARE * max(gaps), []
        for (start, end), gap in zip(pairwise(self.ends), gaps, strict=True):
            if gap >= least:
                middles.append((start + end) / 2)
        self.ends = sorted([*self.ends, *middles])


def integrate(evaluate: Evaluate, count: int, tolerance: float, max_steps: int) -> list[AdaptivePath]:
    """Integrate along `count` paths; each is refined until its error is below `tolerance` or it has `max_steps` points.

    `evaluate(paths, points)` is called once per round with the new points of all unfinished paths.
    """
    paths = [AdaptivePath() for _ in range(count)]
    pending = list(range(count))
    while pending:
        asked: list[tuple[int, float]] = []
        for number in pending:
            asked += [(number, point) for point in paths[number].missing_points()]
        numbers, points = zip(*asked, strict=True)
        for (number, point), value in zip(asked, evaluate(numbers, points), strict=True):
            paths[number].values[point] = value
        pending = [n for n in pending if len(paths[n].values) < max_steps and not paths[n].has_converged(tolerance)]
        for number in pending:
            paths[number].halve_intervals()
    return paths


def _simpson(start: float, end: float) -> tuple[tuple[float, float], ...]:
    """Return points and weights of Simpson's rule on an interval."""
    sixth = (end - start) / 6
    return (start, sixth), ((start + end) / 2, 4 * sixth), (end, sixth)
