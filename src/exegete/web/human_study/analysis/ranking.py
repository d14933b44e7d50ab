"""From ballots to ratings: TrueSkill, the partial order that its intervals allow, and how far people agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import trueskill
from numpy.typing import NDArray

Ballot = Mapping[str, int]
"""The rank of each method, 1 the best; ties share a rank."""

MU, SIGMA = 0.0, 0.5
Z95 = 1.959964
TRUESKILL = trueskill.TrueSkill(mu=MU, sigma=SIGMA, beta=25 / 6, tau=25 / 300, draw_probability=0.1)
"""TrueSkill as in Table 4 of Fernandes et al. 2022: everybody begins at μ = 0, σ = 0.5, and the other parameters are
the package's defaults. Only with those can σ grow from 0.5 to the 0.67 to 0.70 of that table: τ adds to the uncertainty
before each ballot, and against β = 25/6 a ballot tells little."""


class Rating(NamedTuple):
    """A method's skill: mean `mu`, deviation `sigma`, 95 % interval, and the ranks (best, worst) it allows.

    `mean_rank` is over the ballots, without any model.
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
        """As the paper's table writes it: 2, or 3-4."""
        return str(self.best) if self.best == self.worst else f"{self.best}-{self.worst}"


def rate_methods(ballots: Sequence[Ballot]) -> list[Rating]:
    """Every method's rating after all ballots, best first. The order of ballots matters a little: keep it fixed."""
    names = sorted({method for ballot in ballots for method in ballot})
    skill = {name: TRUESKILL.create_rating() for name in names}
    for ballot in ballots:
        if len(ballot) > 1:
            teams = [(skill[name],) for name in ballot]
            rated = TRUESKILL.rate(teams, ranks=list(ballot.values()))
            skill |= {name: team[0] for name, team in zip(ballot, rated, strict=True)}
    mu, sigma = ([getattr(skill[name], part) for name in names] for part in ("mu", "sigma"))
    places = compute_rank_ranges(mu, sigma)
    found = [
        Rating(name, m, s, m - Z95 * s, m + Z95 * s, *place, float(np.mean([b[name] for b in ballots if name in b])))
        for name, m, s, place in zip(names, mu, sigma, places, strict=True)
    ]
    return sorted(found, key=lambda rating: -rating.mu)


def compute_rank_ranges(mu: Sequence[float], sigma: Sequence[float]) -> list[tuple[int, int]]:
    """The best and worst rank of each: one is above another when their 95 % intervals do not meet."""
    low = np.asarray(mu) - Z95 * np.asarray(sigma)
    high = np.asarray(mu) + Z95 * np.asarray(sigma)
    above = (low[None, :] > high[:, None]).sum(1)
    below = (high[None, :] < low[:, None]).sum(1)
    return [(1 + int(a), len(mu) - int(b)) for a, b in zip(above, below, strict=True)]


def kendall_w(ballots: Sequence[Ballot]) -> float:
    """Kendall's W of several rankings of the same methods, corrected for ties: 1 is full agreement, 0 none.

    NaN for fewer than two rankings or methods, where every ranking ties everything, and where methods differ.
    """
    if len(ballots) < 2 or len(ballots[0]) < 2 or any(set(ballot) != set(ballots[0]) for ballot in ballots):
        return float("nan")
    names = sorted(ballots[0])
    ranks = np.stack([compute_midranks([ballot[name] for name in names]) for ballot in ballots])
    m, n = ranks.shape
    spread = float(((ranks.sum(0) - m * (n + 1) / 2) ** 2).sum())
    ties = sum(float((count**3 - count).sum()) for count in (np.unique(row, return_counts=True)[1] for row in ranks))
    most = m * m * (n**3 - n) - m * ties
    return 12 * spread / most if most > 0 else float("nan")


def mean_kendall_w(ballots: Iterable[tuple[int, Ballot]]) -> tuple[float, int]:
    """Mean W over examples of which several people ranked the same methods, from (example, ballot); over how many."""
    by_example: dict[tuple[int, frozenset[str]], list[Ballot]] = {}
    for example, ballot in ballots:
        by_example.setdefault((example, frozenset(ballot)), []).append(ballot)
    known = [w for w in map(kendall_w, by_example.values()) if not np.isnan(w)]
    return (float(np.mean(known)) if known else float("nan")), len(known)


def compute_midranks(ranks: Sequence[int]) -> NDArray[np.float64]:
    """Ranks as statistics has them: those that tie share the mean of their places."""
    values = np.asarray(ranks)
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values], dtype=np.float64)
