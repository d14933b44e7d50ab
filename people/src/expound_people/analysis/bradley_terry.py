"""The Bradley–Terry model of pairwise wins, with intervals that account for differences between annotators."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.special import expit
from scipy.stats import t as student

if TYPE_CHECKING:
    from expound_people.analysis.ranking import Ballot

MAX_STEPS, TOLERANCE = 100, 1e-10


class Strength(NamedTuple):
    """A method's log strength, centered over all methods, with its 95 % interval."""

    method: str
    strength: float
    low: float
    high: float


class BradleyTerryFit(NamedTuple):
    """Log strengths [M] that sum to 0, their covariance [M, M], and the number of annotators."""

    strengths: NDArray[np.float64]
    covariance: NDArray[np.float64]
    people: int

    def interval(self, contrast: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the estimate of a contrast [M] of strengths and its 95 % interval.

        The interval is that of Student's t with people - 1 degrees of freedom.
        """
        # Without rounding, a strength of zero could be shown as -0.00.
        estimate = round(float(contrast @ self.strengths), 12) + 0.0
        # Rounding can make the variance of a contrast slightly negative.
        variance = max(float(contrast @ self.covariance @ contrast), 0.0)
        width = float(variance**0.5 * student.ppf(0.975, self.people - 1))
        return estimate, estimate - width, estimate + width


def estimate_strengths(ballots: Sequence[Ballot], people: Sequence[Hashable]) -> list[Strength]:
    """Estimate Bradley–Terry log strengths from rankings and the annotator who gave each one.

    Returns one row per method, strongest first. Strengths are NaN if a group of methods never loses to the others;
    intervals are NaN, too, if there are fewer annotators than methods.
    """
    methods = sorted(set(chain.from_iterable(ballots)))
    fitted = fit_bradley_terry(count_wins(ballots, people, methods))
    centered = np.eye(len(methods)) - 1 / max(1, len(methods))
    rows = [Strength(method, *fitted.interval(centered[number])) for number, method in enumerate(methods)]
    return sorted(rows, key=lambda row: -row.strength)


def count_wins(ballots: Sequence[Ballot], people: Sequence[Hashable], names: Sequence[str]) -> NDArray[np.float64]:
    """Count how often each annotator ranked a method above another one.

    Returns:
        wins [P, M, M]: annotator, better method, worse method. A tie is half a win for both.
    """
    person_index = {person: number for number, person in enumerate(dict.fromkeys(people))}
    method_index = {name: number for number, name in enumerate(names)}
    wins = np.zeros((len(person_index), len(names), len(names)))
    for ballot, person in zip(ballots, people, strict=True):
        places = [method_index[name] for name in ballot]
        ranks = np.array(list(ballot.values()))
        better = (ranks[:, None] < ranks[None, :]) + 0.5 * (ranks[:, None] == ranks[None, :])
        np.fill_diagonal(better, 0)
        wins[person_index[person]][np.ix_(places, places)] += better
    return wins


def fit_bradley_terry(wins: NDArray[np.float64]) -> BradleyTerryFit:
    """Compute the maximum-likelihood strengths of wins [P, M, M] (Bradley and Terry 1952) by Newton's method.

    The covariance is the sandwich estimate clustered by annotator with the small-sample factor P / (P - 1), as
    comparisons within one ranking, and of one annotator, are dependent. Strengths that do not exist are NaN.
    """
    people, size = wins.shape[:2]
    total = wins.sum(0)
    undefined = BradleyTerryFit(np.full(size, np.nan), np.full((size, size), np.nan), people)
    # Ford (1957): finite strengths exist only if the graph of wins is strongly connected, so that every method is
    # reached from every other one by a chain of wins.
    if not size or connected_components(total > 0, connection="strong")[0] > 1:
        return undefined
    comparisons, theta = total + total.T, np.zeros(size)
    for _ in range(MAX_STEPS):
        probability = expit(theta[:, None] - theta[None, :])
        gradient = (total - comparisons * probability).sum(1)
        information = comparisons * probability * (1 - probability)
        # Strengths are defined up to a constant, so the information matrix is singular: the pseudo-inverse solves it.
        inverse = np.linalg.pinv(np.diag(information.sum(1)) - information)
        step = inverse @ gradient
        # Steps are limited to 1 because full Newton steps can diverge if one method wins nearly always.
        theta = theta + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < TOLERANCE:
            break
    # The gradients of all people sum to zero, so fewer people than methods leave a contrast without any variance.
    if people < max(2, size):
        return undefined._replace(strengths=theta - theta.mean())
    gradients = (wins - (wins + wins.transpose(0, 2, 1)) * probability).sum(2)
    covariance = inverse @ gradients.T @ gradients @ inverse * people / (people - 1)
    return BradleyTerryFit(theta - theta.mean(), covariance, people)
