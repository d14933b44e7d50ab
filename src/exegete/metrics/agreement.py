"""How far two explanations put the same positions first."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import kendalltau


def kendall_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Kendall's τ-b of two lists of scores; NaN for fewer than two, or where all scores of one are equal."""
    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(kendalltau(left, right, variant="b").statistic)


def jaccard(one: ArrayLike, other: ArrayLike, share: float = 0.25) -> float:
    """|A ∩ B| / |A ∪ B| of the ⌈share · n⌉ positions with the highest scores (Zafar et al. 2021); NaN for none.

    Of equal scores the first positions count as higher.
    """
    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    size = math.ceil(round(share * len(left), 9))
    if not size:
        return float("nan")
    tops = [set(np.argsort(-scores, kind="stable")[:size].tolist()) for scores in (left, right)]
    return len(tops[0] & tops[1]) / len(tops[0] | tops[1])
