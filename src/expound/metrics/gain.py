"""Average relative gain of one training over another, over several datasets."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from expound.errors import ExpoundError


def average_relative_gain(scores: ArrayLike, baseline: ArrayLike, higher_is_better: bool = True) -> float:
    """Return the mean over datasets of (s − b) / |b| in per cent; above 0 is better (IvRA, §3.4, after Ye et al. 2021).

    The sign is inverted for measures whose lower values are better. NaN if a baseline score is 0 or a score is NaN.

    Args:
        scores: one number per dataset of the training to judge.
        baseline: the same of the training to compare with.
        higher_is_better: whether higher scores are better.

    Raises:
        ExpoundError: different numbers of scores, or no scores.
    """
    own, other = np.atleast_1d(np.asarray(scores, float)), np.atleast_1d(np.asarray(baseline, float))
    if own.shape != other.shape or not own.size:
        raise ExpoundError(f"expected as many scores as baseline scores, at least 1, got {own.size} and {other.size}")
    if (other == 0).any():
        return float("nan")
    # Divided by the magnitude: measures like sufficiency can be negative, and a gain must keep its sign.
    gain = float(np.mean((own - other) / np.abs(other)) * 100)
    return gain if higher_is_better else -gain
