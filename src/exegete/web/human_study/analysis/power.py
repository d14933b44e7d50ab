"""How many people a study needs: planted effects, simulated answers, and how often the analysis finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import t as student

from exegete.errors import ExegeteError
from exegete.web.human_study.analysis.bradley_terry import fit_bradley_terry
from exegete.web.human_study.blocks import BlockDesign

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StudyDesign:
    """A planned study: what is simulated for each number of people.

    `effect`: of a ranking, how often the better of two neighbouring methods is put first (0.5: no effect); of guesses,
    by how much an explanation raises the share of right ones. `baseline`: that share without one. `person`, `item`:
    standard deviations of what people and items bring in, on the scale of log odds; `screen`: explanations on a screen.
    """

    effect: float
    kind: str = "rank"
    methods: int = 3
    items: int = 10
    screen: int = 4
    baseline: float = 0.6
    person: float = 0.5
    item: float = 0.5

    def __post_init__(self) -> None:
        highest = 1.0 if self.kind == "rank" else 1 - self.baseline
        lowest = 0.5 if self.kind == "rank" else 0.0
        if not lowest <= self.effect < highest:
            raise ExegeteError(f"expected an effect from {lowest} to below {highest:.3g}, got {self.effect}")
        if not 0 < self.baseline < 1 or min(self.person, self.item) < 0:
            raise ExegeteError("expected a baseline between 0 and 1, and deviations that are not negative")


class Power(NamedTuple):
    """`power`: the share of simulated studies that find every planted effect; `width`: of an interval, on average."""

    people: int
    power: float
    width: float


def simulate_power(design: StudyDesign, people: int, runs: int = 200, seed: int = 0) -> Power:
    """The power of a study with so many people at a two-sided level of 5 %.

    A ranking finds an effect when the interval of the difference of two neighbouring methods excludes 0, for all
    neighbours; guesses, when the interval of each method's gain does.
    """
    if people < 2:
        raise ExegeteError(f"expected 2 people or more, got {people}")
    generator = np.random.default_rng([seed, people])
    one = _simulate_rankings if design.kind == "rank" else _simulate_guesses
    found = np.array([one(design, people, generator) for _ in range(runs)])
    return Power(people, float(found[:, 0].mean()), float(np.nanmean(found[:, 1])))


def _simulate_rankings(design: StudyDesign, people: int, generator: np.random.Generator) -> tuple[float, float]:
    """Plackett–Luce rankings, by Gumbel noise, of the methods on each screen."""
    size, step = design.methods, float(logit(design.effect))
    strength = step * np.arange(size, 0, -1)
    taste = generator.normal(0, design.person, (people, size)) if design.person else np.zeros((people, size))
    fits = generator.normal(0, design.item, (design.items, size))
    blocks = BlockDesign.for_methods(size, design.screen)
    wins = np.zeros((people, size, size))
    for person in range(people):
        for item in range(design.items):
            shown = blocks.get_methods(person, item)
            liked = strength[shown] + taste[person, shown] + fits[item, shown] + generator.gumbel(size=len(shown))
            wins[person][np.ix_(shown, shown)] += liked[:, None] > liked[None, :]
    fitted = fit_bradley_terry(wins)
    found = [fitted.interval(np.eye(size)[place] - np.eye(size)[place + 1]) for place in range(size - 1)]
    return float(all(low > 0 for _, low, _ in found)), float(np.mean([high - low for _, low, high in found]))


def _simulate_guesses(design: StudyDesign, people: int, generator: np.random.Generator) -> tuple[float, float]:
    """Guesses before and after: each person sees one method for each item, in turn."""
    base, raised = logit(design.baseline), logit(design.baseline + design.effect)
    shift = generator.normal(0, design.person, (people, 1)) + generator.normal(0, design.item, (1, design.items))
    before = generator.random((people, design.items)) < expit(base + shift)
    after = generator.random((people, design.items)) < expit(raised + shift)
    gains = after.astype(np.float64) - before
    method = (np.arange(people)[:, None] + np.arange(design.items)) % design.methods
    found = [_compute_gain_interval(np.where(method == number, gains, np.nan)) for number in range(design.methods)]
    return float(all(low > 0 for low, _ in found)), float(np.mean([high - low for low, high in found]))


def _compute_gain_interval(gains: FloatArray) -> tuple[float, float]:
    """The 95 % interval of a mean gain over people [P, I], NaN where another method was shown."""
    mine = gains[~np.isnan(gains).all(1)]
    means = np.nanmean(mine, 1) if len(mine) else np.zeros(0)
    if len(means) < 2:
        return float("nan"), float("nan")
    width = float(student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)))
    return float(means.mean()) - width, float(means.mean()) + width
