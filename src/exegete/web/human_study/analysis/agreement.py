"""Krippendorff's α: agreement of any number of people on any number of units, with gaps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exegete.errors import unknown

Array = NDArray[np.float64]


def _nominal_differences(values: Array, counts: Array) -> Array:
    return 1.0 - np.eye(len(counts))


def _ordinal_differences(values: Array, counts: Array) -> Array:
    """Between two values lie all the ratings from one to the other, those at the ends by half."""
    middle = np.cumsum(counts) - counts / 2
    squared: Array = (middle[:, None] - middle[None, :]) ** 2
    return squared


def _interval_differences(values: Array, counts: Array) -> Array:
    squared: Array = (values[:, None] - values[None, :]) ** 2
    return squared


LEVELS: dict[str, Callable[[Array, Array], Array]] = {
    "nominal": _nominal_differences,
    "ordinal": _ordinal_differences,
    "interval": _interval_differences,
}
"""Squared differences [V, V] of V values, which occur `counts` times [V], by level of measurement."""


def krippendorff_alpha(units: Iterable[Collection[Hashable]], level: str = "nominal") -> float:
    """Krippendorff's α = 1 - D_o / D_e (Krippendorff 2011): 1 is full agreement, 0 that of chance.

    Args:
        units: the ratings of each unit, by whoever rated it; units with fewer than two ratings tell nothing.
        level: one of `LEVELS`; for ordinal and interval, ratings are numbers.

    Returns:
        α; NaN where no unit has two ratings, or all ratings are the same.
    """
    if level not in LEVELS:
        raise unknown("level of measurement", level, LEVELS)
    rated: list[Collection[Any]] = [unit for unit in units if len(unit) > 1]
    values = sorted({value for unit in rated for value in unit}, key=None if level != "nominal" else repr)
    if len(values) < 2:
        return float("nan")
    place = {value: number for number, value in enumerate(values)}
    together = np.zeros((len(values), len(values)))
    for unit in rated:
        found = np.bincount([place[value] for value in unit], minlength=len(values)).astype(np.float64)
        together += (np.outer(found, found) - np.diag(found)) / (len(unit) - 1)
    counts = together.sum(1)
    plain = np.array(values, dtype=np.float64) if level != "nominal" else counts
    apart = LEVELS[level](plain, counts)
    expected = float((np.outer(counts, counts) * apart).sum())
    return 1 - (float(counts.sum()) - 1) * float((together * apart).sum()) / expected
