"""By how much one training does better than another, over several datasets."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from exegete.errors import ExegeteError


def average_relative_gain(scores: ArrayLike, baseline: ArrayLike, higher_is_better: bool = True) -> float:
    """Mean over datasets of (s − u) / |u| in per cent, its sign turned where lower is better (IvRA, §3.4).

    After Ye et al. 2021. Above 0: better. The magnitude of `baseline` divides, so that the sign also holds for measures
    that can be negative, as sufficiency can. NaN where a usual score is 0 or a score is NaN: there is no relative gain.

    Args:
        scores: one number a dataset, of what is looked at.
        baseline: the same of what it is compared with.
        higher_is_better: whether more is better.

    Raises:
        ExegeteError: not the same number of scores, or none.
    """
    found, base = np.atleast_1d(np.asarray(scores, float)), np.atleast_1d(np.asarray(baseline, float))
    if found.shape != base.shape or not found.size:
        raise ExegeteError(f"expected as many scores as usual ones, at least 1, got {found.size} and {base.size}")
    if (base == 0).any():
        return float("nan")
    gain = float(np.mean((found - base) / np.abs(base)) * 100)
    return gain if higher_is_better else -gain
