"""Agreement of two explanations: do they rank the same positions first?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from expound.errors import ExpoundError


def jaccard(one: ArrayLike, other: ArrayLike, share: float = 0.25) -> float:
    """Return |A ∩ B| / |A ∪ B| of the ⌈share · n⌉ highest of each of two lists of n scores (Zafar et al. 2021).

    Scores are compared with their sign; among equal scores the first counts as higher. NaN for empty lists.

    Raises:
        ExpoundError: lists of different lengths, or a share outside (0, 1].
    """
    from expound.metrics.ranking import check_fractions

    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if left.shape != right.shape:
        raise ExpoundError(f"expected scores of the same positions, got {len(left)} and {len(right)} of them")
    check_fractions([share])
    if not len(left):
        return float("nan")
    # Rounding first: 0.1 · 30 is 3.0000000000000004 in floating point, and its ceiling 4.
    size = math.ceil(round(share * len(left), 9))
    left_top, right_top = (set(np.argsort(-scores, kind="stable")[:size].tolist()) for scores in (left, right))
    return len(left_top & right_top) / len(left_top | right_top)
