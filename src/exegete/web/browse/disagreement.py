"""How alike several methods rank the parts of one example."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from exegete.reports.attributions import Attribution


def compute_correlations(items: Sequence[Attribution]) -> NDArray[np.float64]:
    """[M, M] Kendall's τ-b between the scores of every two methods, over positions that are not special.

    Signed scores count by their magnitude, as everywhere that signed and unsigned methods meet. NaN where a method
    gives every position the same score.
    """
    scores = np.stack([_scores(item) for item in items])
    upper = np.triu_indices(scores.shape[1], 1)
    signs = np.sign(scores[:, upper[0]] - scores[:, upper[1]])
    size = np.sqrt((signs != 0).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: NDArray[np.float64] = np.asarray((signs @ signs.T) / np.outer(size, size), dtype=np.float64)
    return found


def _scores(item: Attribution) -> NDArray[np.float64]:
    values: NDArray[np.float64] = item.scores[~np.asarray(item.special, dtype=bool)].astype(np.float64)
    return np.absolute(values, dtype=np.float64) if item.signed else values
