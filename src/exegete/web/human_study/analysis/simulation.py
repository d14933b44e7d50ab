"""Did explanations help people to predict the model? Share of right guesses, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exegete.metrics.simulatability import simulatability_gain
from exegete.reports.tables.leaderboard import bootstrap_intervals, draw_resamples

RESAMPLES = 1000


class Guess(NamedTuple):
    """One person on one example: whether the guesses without and with an explanation were the model's answer."""

    example: int
    method: str
    before: bool
    after: bool


class SimulationGain(NamedTuple):
    """A method's effect: shares of right guesses, and their difference with its 95 % bootstrap interval."""

    method: str
    guesses: int
    before: float
    after: float
    gain: float
    low: float
    high: float

    @property
    def normalised_gain(self) -> float:
        """The gain as a share of the largest there could be."""
        return simulatability_gain(self.after, self.before)


def compute_gains(guesses: Sequence[Guess], seed: int = 0) -> list[SimulationGain]:
    """By method, best gain first. Intervals are over examples: people who guess at the same one are not independent."""
    found = []
    for method in dict.fromkeys(guess.method for guess in guesses):
        mine = [guess for guess in guesses if guess.method == method]
        examples = sorted({guess.example for guess in mine})
        gains = [
            np.mean([guess.after - guess.before for guess in mine if guess.example == example]) for example in examples
        ]
        cube = np.array(gains, dtype=np.float64)[None, None]
        low, high = bootstrap_intervals(cube, draw_resamples(len(examples), RESAMPLES, seed))
        before, after = (float(np.mean([getattr(guess, when) for guess in mine])) for when in ("before", "after"))
        found.append(
            SimulationGain(method, len(mine), before, after, float(np.mean(gains)), float(low[0, 0]), float(high[0, 0]))
        )
    return sorted(found, key=lambda row: -row.gain)
