"""Krippendorff's α: agreement of any number of annotators on any number of units, with missing ratings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expound.errors import check_choice

Array = NDArray[np.float64]


def _compute_ordinal_differences(counts: Array) -> Array:
    # Krippendorff's ordinal metric counts the ratings between two values, and half of the ratings at both ends. That
    # is the difference of the midpoints of the cumulative counts.
    midpoints = np.cumsum(counts) - counts / 2
    squared: Array = (midpoints[:, None] - midpoints[None, :]) ** 2
    return squared


LEVELS: dict[str, Callable[[Array], Array]] = {
    "nominal": lambda counts: 1.0 - np.eye(len(counts)),
    "ordinal": _compute_ordinal_differences,
}
"""Functions from the counts [V] of sorted values to squared differences [V, V], by level of measurement."""


def krippendorff_alpha(units: Iterable[Collection[Hashable]], level: str = "nominal") -> float:
    """Compute Krippendorff's α = 1 - D_o / D_e (Krippendorff 2011): 1 is perfect agreement, 0 is chance agreement.

    Args:
        units: the ratings of each unit; units with fewer than two ratings are ignored.
        level: one of `LEVELS`; ordinal ratings are numbers.

    Returns:
        α; NaN if no unit has two ratings, or if all ratings are the same.
    """
    check_choice("level of measurement", level, LEVELS)
    rated: list[Collection[Any]] = [unit for unit in units if len(unit) > 1]
    # Nominal ratings may be of types that cannot be compared, as texts and None, so they are sorted by their repr.
    values = sorted(set(chain.from_iterable(rated)), key=repr if level == "nominal" else None)
    if len(values) < 2:
        return float("nan")
    index = {value: number for number, value in enumerate(values)}
    coincidences = np.zeros((len(values), len(values)))
    for unit in rated:
        counts = np.bincount([index[value] for value in unit], minlength=len(values)).astype(np.float64)
        # Every ordered pair of ratings of a unit counts 1 / (m - 1), so that a unit of m ratings adds m in all. The
        # diagonal is subtracted because a rating is not paired with itself.
        coincidences += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    totals = coincidences.sum(1)
    differences = LEVELS[level](totals)
    expected = float((np.outer(totals, totals) * differences).sum())
    # The factor n - 1 comes from drawing two ratings without replacement.
    return 1 - (float(totals.sum()) - 1) * float((coincidences * differences).sum()) / expected
