"""Lower bounds on what an answer loses without a source, right as often as promised: split-conformal, by prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SMALLEST = 0.01
"""Nats, one per cent of a probability: what is less is not worth a promise."""


@dataclass(frozen=True, slots=True)
class ConformalLowerBound:
    """By how much a log-probability falls at least when one source goes, wrong with a chance of `alpha` at most.

    A source's share is its score among the positive scores of all sources; `bounds` [K] has a bound for each of K equal
    stretches of shares from 0 to 1. It is NaN where no more than 0.01 nats can be promised: then, and of sources whose
    score is not positive, nothing is said.

    A bound is the weighted quantile of measured falls over prompts, each of weight 1 whatever the number of its sources
    in the stretch, with a prompt at −∞ for the one that is asked about (Lee, Barber & Willett 2023, hierarchical
    conformal prediction). With exchangeable prompts it holds for a random such source of a random prompt that has one.
    """

    alpha: float
    bounds: tuple[float, ...]

    @classmethod
    def calibrate(
        cls, scores: Sequence[Array], falls: Sequence[Array], alpha: float = 0.1, bins: int = 5
    ) -> ConformalLowerBound:
        """From N prompts' scores [.., U] and falls [.., U], the leading rows being parts of an answer."""
        places = [_share_bin(each, bins) for each in scores]
        bounds = []
        for number in range(bins):
            inside = [own[place == number] for own, place in zip(falls, places, strict=True)]
            bounds.append(_conformal_quantile([own for own in inside if len(own)], alpha))
        return cls(alpha, tuple(value if value > SMALLEST else float("nan") for value in bounds))

    def lower_bounds(self, scores: Array) -> Array:
        """[.., U] The bound of each source of scores [.., U]; NaN where nothing is promised."""
        place = _share_bin(scores, len(self.bounds))
        found: Array = np.append(np.array(self.bounds, np.float64), np.nan)[place]
        return found


def shares(scores: Array) -> Array:
    """[.., U] Positive scores as shares of 1; 0 for all others."""
    positive = np.maximum(scores, 0.0)
    total = positive.sum(-1, keepdims=True)
    found: Array = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0)
    return found


def _share_bin(scores: Array, count: int) -> NDArray[np.int64]:
    """[.., U] The number of each share's stretch; `count` for shares of 0."""
    share = shares(np.asarray(scores, np.float64))
    number = np.minimum((share * count).astype(np.int64), count - 1)
    return np.where(share > 0, number, count)


def _conformal_quantile(falls: Sequence[Array], alpha: float) -> float:
    """The largest bound that the falls of a new prompt are below with a chance of at most alpha; −∞ without one."""
    if not falls:
        return -np.inf
    values = np.concatenate(falls)
    weight = np.concatenate([np.full(len(own), 1 / len(own)) for own in falls]) / (len(falls) + 1)
    order = np.argsort(values, kind="stable")
    below = 1 / (len(falls) + 1) + np.cumsum(weight[order])
    if 1 / (len(falls) + 1) > alpha:
        return -np.inf
    return float(values[order][np.argmax(below > alpha + 1e-12)])
