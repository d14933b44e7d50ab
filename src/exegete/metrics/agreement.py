"""How far two explanations put the same positions first."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import kendalltau


def kendall_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Kendall's τ-b of two lists of scores; NaN for fewer than two, or where all scores of one are equal."""
    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(kendalltau(left, right, variant="b").statistic)
