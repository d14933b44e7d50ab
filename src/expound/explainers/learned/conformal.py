"""Conformal lower bounds on what an answer loses without a source, calibrated on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SMALLEST = 0.01
"""In nats, about one per cent of a probability: smaller bounds are not worth stating."""


@dataclass(frozen=True, slots=True)
class ConformalLowerBound:
    """Lower bounds on the drop of a log-probability when one source is removed, wrong with probability ≤ `error_rate`.

    The share of a source is its score divided by the sum of the positive scores of all sources. `bounds` [K] has a
    bound for each of K equal bins of the share from 0 to 1. It is NaN if no bound above 0.01 nats holds. Sources whose
    score is not positive have no bound.

    A bound is the weighted quantile of measured drops over prompts: each prompt has weight 1, regardless of how many
    sources it has in the bin, and the new prompt enters with a drop of −∞ (hierarchical conformal prediction, Lee,
    Barber & Willett 2023). For exchangeable prompts it holds for a random source in the bin of a random prompt that has
    one.
    """

    error_rate: float
    bounds: tuple[float, ...]

    @classmethod
    def calibrate(
        cls, scores: Sequence[Array], drops: Sequence[Array], error_rate: float = 0.1, bins: int = 5
    ) -> ConformalLowerBound:
        """Calibrate bounds on N prompts.

        Args:
            scores: of each prompt the scores [.., U] of its sources; leading dimensions are parts of an answer.
            drops: of each prompt the measured drops [.., U].
            error_rate: how often a bound may be wrong.
            bins: number of bins of the share.
        """
        bins_of = [_share_bin(prompt, bins) for prompt in scores]
        bounds = []
        for number in range(bins):
            inside = [drop[own_bin == number] for drop, own_bin in zip(drops, bins_of, strict=True)]
            # Prompts without a source in the bin say nothing about it and must not dilute the weights.
            bounds.append(_conformal_quantile([drop for drop in inside if len(drop)], error_rate))
        values = np.array(bounds)
        return cls(error_rate, tuple(np.where(values > SMALLEST, values, np.nan).tolist()))

    def lower_bounds(self, scores: Array) -> Array:
        """Return the bound of each source [.., U], given the scores [.., U]; NaN for sources without a bound."""
        number = _share_bin(scores, len(self.bounds))
        values: Array = np.append(np.array(self.bounds, np.float64), np.nan)[number]
        return values


def shares(scores: Array) -> Array:
    """Return positive scores divided by their sum [.., U]; 0 for all others."""
    positive = np.maximum(scores, 0.0)
    total = positive.sum(-1, keepdims=True)
    parts: Array = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0)
    return parts


def _share_bin(scores: Array, count: int) -> NDArray[np.int64]:
    """Return the bin of each share [.., U]; `count` for shares of 0."""
    share = shares(np.asarray(scores, np.float64))
    number = np.minimum((share * count).astype(np.int64), count - 1)
    return np.where(share > 0, number, count)


def _conformal_quantile(drops: Sequence[Array], error_rate: float) -> float:
    """Return the largest bound that a new prompt's drops are below with probability ≤ `error_rate`; −∞ if none is."""
    if not drops:
        return -np.inf
    # The new prompt has the same weight as each of the others; its drop is unknown, so it counts as below any bound.
    own_weight = 1 / (len(drops) + 1)
    if own_weight > error_rate:
        return -np.inf
    values = np.concatenate(drops)
    weight = np.concatenate([np.full(len(prompt), 1 / len(prompt)) for prompt in drops]) * own_weight
    order = np.argsort(values, kind="stable")
    below = own_weight + np.cumsum(weight[order])
    # The tolerance: sums of weights that should equal error_rate exceed it by rounding.
    return float(values[order][np.argmax(below > error_rate + 1e-12)])
