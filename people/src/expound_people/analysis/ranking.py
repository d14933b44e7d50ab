"""Ratings from rankings: TrueSkill, ranges of ranks from its intervals, and Kendall's W."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import trueskill
from scipy.stats import rankdata

Ballot = Mapping[str, int]
"""One ranking: the rank of each method, 1 is best; ties share a rank."""

MU, SIGMA = 0.0, 0.5
Z95 = 1.959964
# Fernandes et al. 2022, table 4, start at μ = 0, σ = 0.5; the other parameters are the package's defaults. Only with
# those can σ grow from 0.5 to the 0.67 to 0.70 of that table: τ adds uncertainty before each ballot, and with
# β = 25/6 a single ballot carries little information.
TRUESKILL = trueskill.TrueSkill(mu=MU, sigma=SIGMA, beta=25 / 6, tau=25 / 300, draw_probability=0.1)


class Rating(NamedTuple):
    """A method's TrueSkill mean `mu` and deviation `sigma`, its 95 % interval, and the range of ranks it allows.

    `mean_rank` is the plain mean over the ballots.
    """

    method: str
    mu: float
    sigma: float
    low: float
    high: float
    best: int
    worst: int
    mean_rank: float

    @property
    def rank(self) -> str:
        """Return the range of ranks as the paper's table prints it: 2, or 3-4."""
        return str(self.best) if self.best == self.worst else f"{self.best}-{self.worst}"


def rate_methods(ballots: Sequence[Ballot]) -> list[Rating]:
    """Compute every method's rating after all ballots, best first.

    TrueSkill updates after each ballot, so the order of ballots has a small effect: keep it fixed.
    """
    methods = sorted(set(chain.from_iterable(ballots)))
    skills = {method: TRUESKILL.create_rating() for method in methods}
    for ballot in ballots:
        if len(ballot) > 1:
            # To TrueSkill a ballot is a game of as many teams, each with one player.
            teams = [(skills[method],) for method in ballot]
            updated = TRUESKILL.rate(teams, ranks=list(ballot.values()))
            skills |= {method: team[0] for method, team in zip(ballot, updated, strict=True)}
    mu = [skills[method].mu for method in methods]
    sigma = [skills[method].sigma for method in methods]
    rows = []
    for method, m, s, ranks in zip(methods, mu, sigma, compute_rank_ranges(mu, sigma), strict=True):
        mean_rank = float(np.mean([ballot[method] for ballot in ballots if method in ballot]))
        rows.append(Rating(method, m, s, m - Z95 * s, m + Z95 * s, *ranks, mean_rank))
    return sorted(rows, key=lambda rating: -rating.mu)


def compute_rank_ranges(mu: Sequence[float], sigma: Sequence[float]) -> list[tuple[int, int]]:
    """Return the best and worst possible rank of each method.

    A method is above another one only if their 95 % intervals do not overlap.
    """
    low = np.asarray(mu) - Z95 * np.asarray(sigma)
    high = np.asarray(mu) + Z95 * np.asarray(sigma)
    above = (low[None, :] > high[:, None]).sum(1)
    below = (high[None, :] < low[:, None]).sum(1)
    return [(1 + int(a), len(mu) - int(b)) for a, b in zip(above, below, strict=True)]


def kendall_w(ballots: Sequence[Ballot]) -> float:
    """Compute Kendall's W of rankings of the same methods, corrected for ties: 1 is full agreement, 0 none.

    Returns NaN for fewer than two rankings or methods, for rankings of different methods, and if every ranking ties
    all methods.
    """
    if len(ballots) < 2 or len(ballots[0]) < 2 or any(set(ballot) != set(ballots[0]) for ballot in ballots):
        return float("nan")
    methods = sorted(ballots[0])
    # Tied methods share the mean of their positions.
    ranks = np.stack([rankdata([ballot[method] for method in methods]) for ballot in ballots])
    m, n = ranks.shape
    spread = float(((ranks.sum(0) - m * (n + 1) / 2) ** 2).sum())
    # Siegel and Castellan (1988): every group of t tied methods lowers the largest possible spread by t³ - t.
    ties = 0.0
    for row in ranks:
        sizes = np.unique(row, return_counts=True)[1]
        ties += float((sizes**3 - sizes).sum())
    largest = m * m * (n**3 - n) - m * ties
    return 12 * spread / largest if largest > 0 else float("nan")


def mean_kendall_w(ballots: Iterable[tuple[int, Ballot]]) -> tuple[float, int]:
    """Compute the mean of Kendall's W over examples from (example, ballot) pairs.

    Returns the mean and the number of examples on which W is defined: several annotators ranked the same methods.
    """
    by_example: dict[tuple[int, frozenset[str]], list[Ballot]] = {}
    for example, ballot in ballots:
        # With screens that show some of the methods, ballots of one example can be about different ones.
        by_example.setdefault((example, frozenset(ballot)), []).append(ballot)
    values = [w for w in map(kendall_w, by_example.values()) if not np.isnan(w)]
    if not values:
        return float("nan"), 0
    return float(np.mean(values)), len(values)
