"""Rank correlations between the scores that several methods give to one example."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from expound.reports.explanations import Explanation


def compute_correlations(items: Sequence[Explanation]) -> NDArray[np.float64]:
    """Return Kendall's τ-b [M, M] between the scores of each two methods, without special tokens.

    Signed scores count by their magnitude, so that they can be compared with unsigned ones. A method that gives every
    position the same score has NaN.
    """
    rows = [np.absolute(item.content_scores) if item.signed else item.content_scores for item in items]
    scores = np.stack(rows).astype(np.float64)
    # One matrix product for all pairs of methods: scipy's kendalltau would run once per pair and example.
    first, second = np.triu_indices(scores.shape[1], 1)
    signs = np.sign(scores[:, first] - scores[:, second])
    # τ-b: concordant minus discordant pairs, over the geometric mean of the pairs without ties in either ranking.
    n_untied = np.sqrt((signs != 0).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        taus: NDArray[np.float64] = np.asarray((signs @ signs.T) / np.outer(n_untied, n_untied), dtype=np.float64)
    return taus
