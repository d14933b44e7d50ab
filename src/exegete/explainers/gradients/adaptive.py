"""Points on a path placed where the function bends: Simpson's rule on intervals that are halved where they err.

The function's values at the points come with its gradients, so every interval's error is known, not estimated: the
rule's result minus the rise of the function over the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

INITIAL_POINTS = (0.0, 0.125, 0.25, 0.5, 1.0)
SPLIT_SHARE = 0.5
CANCELLATION = 4.0

Evaluate = Callable[[Sequence[int], Sequence[float]], Sequence["Value"]]


class Value(NamedTuple):
    """The function and its slope along the path at a point."""

    score: float
    slope: float


class Path:
    """One path from 0 to 1: the points asked so far and the intervals between them."""

    def __init__(self) -> None:
        self.values: dict[float, Value] = {}
        self.ends = list(INITIAL_POINTS)

    def missing_points(self) -> list[float]:
        """Points that the intervals need and that are not known."""
        points = {point for interval in pairwise(self.ends) for point, _ in _simpson(*interval)}
        return sorted(points - self.values.keys())

    def weights(self) -> dict[float, float]:
        """The composite rule's weight of every point; they add up to 1."""
        total = dict.fromkeys(self.values, 0.0)
        for interval in pairwise(self.ends):
            for point, weight in _simpson(*interval):
                total[point] += weight
        return total

    def errors(self) -> list[float]:
        """The integration error of each interval."""
        return [
            sum(weight * self.values[point].slope for point, weight in _simpson(start, end))
            - (self.values[end].score - self.values[start].score)
            for start, end in pairwise(self.ends)
        ]

    def has_converged(self, tolerance: float) -> bool:
        """Whether the errors together are under `tolerance` of the whole rise, and not by cancelling out alone."""
        gaps, allowed = self.errors(), tolerance * abs(self.values[1.0].score - self.values[0.0].score)
        return abs(sum(gaps)) <= allowed and sum(map(abs, gaps)) <= CANCELLATION * allowed

    def halve_intervals(self) -> None:
        """Halves the interval that errs most, and those that err nearly as much."""
        gaps = [abs(gap) for gap in self.errors()]
        worst = zip(pairwise(self.ends), gaps, strict=True)
        middles = [(start + end) / 2 for (start, end), gap in worst if gap >= SPLIT_SHARE * max(gaps)]
        self.ends = sorted([*self.ends, *middles])


def integrate(evaluate: Evaluate, count: int, tolerance: float, max_steps: int) -> list[Path]:
    """`count` paths, each refined until its error is under `tolerance` of its rise or `max_steps` points are asked.

    `evaluate(paths, points)` gets, round by round, the new points of all paths that are not done, each point once.
    """
    paths = [Path() for _ in range(count)]
    pending = list(range(count))
    while pending:
        asked = [(number, point) for number in pending for point in paths[number].missing_points()]
        numbers, points = zip(*asked, strict=True)
        for (number, point), value in zip(asked, evaluate(numbers, points), strict=True):
            paths[number].values[point] = value
        pending = [n for n in pending if len(paths[n].values) < max_steps and not paths[n].has_converged(tolerance)]
        for number in pending:
            paths[number].halve_intervals()
    return paths


def _simpson(start: float, end: float) -> tuple[tuple[float, float], ...]:
    """Points and weights on an interval."""
    sixth = (end - start) / 6
    return (start, sixth), ((start + end) / 2, 4 * sixth), (end, sixth)
