"""Power analysis: simulate answers with a known effect, and count how often the analysis detects it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import t as student

from expound.errors import ExpoundError
from expound_people.analysis.bradley_terry import fit_bradley_terry
from expound_people.blocks import BlockDesign

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StudyDesign:
    """A planned study.

    `effect`: for rankings, how often the better of two neighboring methods is ranked first (0.5: no effect); for
    simulation, by how much an explanation raises the share of correct guesses. `items`: examples per annotator;
    `screen`: explanations on one screen; `baseline`: share of correct guesses without an explanation; `person`, `item`:
    standard deviations between annotators and between examples, in log odds.
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
        lowest, highest = (0.5, 1.0) if self.kind == "rank" else (0.0, 1 - self.baseline)
        if not lowest <= self.effect < highest:
            raise ExpoundError(f"expected an effect from {lowest} to below {highest:.3g}, got {self.effect}")
        if not 0 < self.baseline < 1 or min(self.person, self.item) < 0:
            raise ExpoundError("expected a baseline between 0 and 1, and deviations that are not negative")


class Power(NamedTuple):
    """The share of simulated studies that detect every effect, and the mean width of their 95 % intervals."""

    people: int
    power: float
    width: float


def simulate_power(design: StudyDesign, people: int, runs: int = 200, seed: int = 0) -> Power:
    """Estimate the power of a study with a number of annotators at a two-sided level of 5 %.

    A ranking study detects the effect if, for all neighboring methods, the interval of their difference excludes 0; a
    simulation study if the interval of every method's gain does.
    """
    if people < 2:
        raise ExpoundError(f"expected 2 people or more, got {people}")
    generator = np.random.default_rng([seed, people])
    simulate = _simulate_rankings if design.kind == "rank" else _simulate_guesses
    results = np.array([simulate(design, people, generator) for _ in range(runs)])
    # A width is NaN in a run where the estimate does not exist; such a run counts as one without detection.
    widths = results[~np.isnan(results[:, 1]), 1]
    return Power(people, float(results[:, 0].mean()), float(widths.mean()) if len(widths) else float("nan"))


def _simulate_rankings(design: StudyDesign, people: int, generator: np.random.Generator) -> tuple[float, float]:
    """Return 1.0 if a simulated study separates all neighboring methods, else 0.0, and the mean interval width."""
    size, step = design.methods, float(logit(design.effect))
    strength = step * np.arange(size, 0, -1)
    person_effects = np.zeros((people, size))
    if design.person:
        person_effects = generator.normal(0, design.person, (people, size))
    item_effects = generator.normal(0, design.item, (design.items, size))
    blocks = BlockDesign.for_methods(size, design.screen)
    wins = np.zeros((people, size, size))
    for person in range(people):
        for item in range(design.items):
            shown = blocks.get_methods(person, item)
            # Sorting strengths with Gumbel noise draws a ranking of the Plackett–Luce model (Yellott 1977), whose
            # pairwise wins follow the Bradley–Terry model that the analysis fits.
            noise = generator.gumbel(size=len(shown))
            utility = strength[shown] + person_effects[person, shown] + item_effects[item, shown] + noise
            wins[person][np.ix_(shown, shown)] += utility[:, None] > utility[None, :]
    fitted = fit_bradley_terry(wins)
    contrasts = np.eye(size)[:-1] - np.eye(size)[1:]
    intervals = [fitted.interval(contrast) for contrast in contrasts]
    widths = [high - low for _, low, high in intervals]
    return float(all(low > 0 for _, low, _ in intervals)), float(np.mean(widths))


def _simulate_guesses(design: StudyDesign, people: int, generator: np.random.Generator) -> tuple[float, float]:
    """Return 1 if one simulated simulation study detects all gains, else 0, and the mean interval width."""
    base, raised = logit(design.baseline), logit(design.baseline + design.effect)
    shift = generator.normal(0, design.person, (people, 1)) + generator.normal(0, design.item, (1, design.items))
    before = generator.random((people, design.items)) < expit(base + shift)
    after = generator.random((people, design.items)) < expit(raised + shift)
    gains = after.astype(np.float64) - before
    # The same rotation as `blinding.assign_method`: each person sees one method per item, in turn.
    method = (np.arange(people)[:, None] + np.arange(design.items)) % design.methods
    intervals = [_compute_gain_interval(np.where(method == n, gains, np.nan)) for n in range(design.methods)]
    widths = [high - low for low, high in intervals]
    return float(all(low > 0 for low, _ in intervals)), float(np.mean(widths))


def _compute_gain_interval(gains: FloatArray) -> tuple[float, float]:
    """Return the 95 % interval of a mean gain; `gains` [P, I] are NaN on items with another method."""
    # The unit is the annotator: gains of one annotator are averaged first because they are dependent.
    observed = gains[~np.isnan(gains).all(1)]
    means = np.nanmean(observed, 1) if len(observed) else np.zeros(0)
    if len(means) < 2:
        return float("nan"), float("nan")
    width = float(student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)))
    return float(means.mean()) - width, float(means.mean()) + width
