"""The Bradley–Terry model of pairwise wins, with intervals that allow for people who differ."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.special import expit
from scipy.stats import t as student

if TYPE_CHECKING:
    from exegete.web.human_study.analysis.ranking import Ballot

MAX_STEPS, TOLERANCE = 100, 1e-10


class Strength(NamedTuple):
    """A method's log strength, centred over all methods, with its 95 % interval."""

    method: str
    strength: float
    low: float
    high: float


class BradleyTerryFit(NamedTuple):
    """Log strengths [M] that sum to 0, their covariance [M, M], and how many people told them."""

    strengths: NDArray[np.float64]
    covariance: NDArray[np.float64]
    people: int

    def interval(self, contrast: NDArray[np.float64]) -> tuple[float, float, float]:
        """Estimate and 95 % interval of a contrast [M] of strengths, by Student's t with people - 1 degrees."""
        estimate = float(contrast @ self.strengths)
        variance = max(float(contrast @ self.covariance @ contrast), 0.0)
        width = float(variance**0.5 * student.ppf(0.975, self.people - 1))
        return estimate, estimate - width, estimate + width


def estimate_strengths(ballots: Sequence[Ballot], people: Sequence[Hashable]) -> list[Strength]:
    """Bradley–Terry log strengths, best first, of ballots and the person that gave each.

    NaN where the data decide none: a group of methods never loses to the others, or there is a single person.
    """
    names = sorted({method for ballot in ballots for method in ballot})
    fitted = fit_bradley_terry(count_wins(ballots, people, names))
    centred = np.eye(len(names)) - 1 / max(1, len(names))
    found = [Strength(name, *fitted.interval(centred[number])) for number, name in enumerate(names)]
    return sorted(found, key=lambda row: -row.strength)


def count_wins(ballots: Sequence[Ballot], people: Sequence[Hashable], names: Sequence[str]) -> NDArray[np.float64]:
    """[P, M, M]: how often each person put a method (row) before another one (column); a tie is half a win of both."""
    number = {person: place for place, person in enumerate(dict.fromkeys(people))}
    found = np.zeros((len(number), len(names), len(names)))
    column = {name: place for place, name in enumerate(names)}
    for ballot, person in zip(ballots, people, strict=True):
        places = [column[name] for name in ballot]
        ranks = np.array(list(ballot.values()))
        better = (ranks[:, None] < ranks[None, :]) + 0.5 * (ranks[:, None] == ranks[None, :])
        np.fill_diagonal(better, 0)
        found[number[person]][np.ix_(places, places)] += better
    return found


def fit_bradley_terry(wins: NDArray[np.float64]) -> BradleyTerryFit:
    """Maximum-likelihood strengths of wins [P, M, M] (Bradley and Terry 1952), by Newton's method.

    The covariance is the sandwich estimate clustered by person with the factor P / (P - 1): comparisons of one ranking,
    and of one person, are not independent. NaN where strengths do not exist.
    """
    people, size = wins.shape[:2]
    total = wins.sum(0)
    nothing = BradleyTerryFit(np.full(size, np.nan), np.full((size, size), np.nan), people)
    if not size or connected_components(total > 0, connection="strong")[0] > 1:
        return nothing
    met, theta = total + total.T, np.zeros(size)
    for _ in range(MAX_STEPS):
        chance = expit(theta[:, None] - theta[None, :])
        slope = (total - met * chance).sum(1)
        spread = met * chance * (1 - chance)
        inverse = np.linalg.pinv(np.diag(spread.sum(1)) - spread)
        step = inverse @ slope
        theta = theta + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < TOLERANCE:
            break
    if people < 2:
        return nothing._replace(strengths=theta - theta.mean())
    slopes = (wins - (wins + wins.transpose(0, 2, 1)) * chance).sum(2)
    covariance = inverse @ slopes.T @ slopes @ inverse * people / (people - 1)
    return BradleyTerryFit(theta - theta.mean(), covariance, people)
