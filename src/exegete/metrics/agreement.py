"""How far two explanations put the same positions first."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from exegete.errors import ExegeteError


def kendall_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Kendall's τ-b of two lists of scores; NaN for fewer than two, or where all scores of one are equal."""
    from scipy.stats import kendalltau

    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(kendalltau(left, right, variant="b").statistic)


def jaccard(one: ArrayLike, other: ArrayLike, share: float = 0.25) -> float:
    """|A ∩ B| / |A ∪ B| of the ⌈share · n⌉ highest of each of two lists of n scores; NaN of none (Zafar et al. 2021).

    Scores are compared with their sign; among equal ones the first counts as higher.
    """
    from exegete.metrics.ranking import check_fractions

    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if left.shape != right.shape:
        raise ExegeteError(f"expected scores of the same positions, got {len(left)} and {len(right)} of them")
    (exact,) = check_fractions([share])
    if not len(left):
        return float("nan")
    size = math.ceil(round(exact * len(left), 9))
    tops = [set(np.argsort(-scores, kind="stable")[:size].tolist()) for scores in (left, right)]
    return len(tops[0] & tops[1]) / len(tops[0] | tops[1])
