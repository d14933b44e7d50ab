"""Simulation gain: how much explanations raise the share of correct predictions of the model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from expound.metrics.simulatability import simulatability_gain
from expound.reports.tables.leaderboard import bootstrap_intervals, draw_resamples

RESAMPLES = 1000


class Guess(NamedTuple):
    """An annotator's two guesses on one example: whether each was the model's answer, before and after explanation."""

    example: int
    method: str
    before: bool
    after: bool


class SimulationGain(NamedTuple):
    """A method's shares of correct guesses before and after, and their difference with a 95 % bootstrap interval."""

    method: str
    guesses: int
    before: float
    after: float
    gain: float
    low: float
    high: float

    @property
    def normalized_gain(self) -> float:
        """Return the gain divided by the largest possible gain."""
        return simulatability_gain(self.after, self.before)


def compute_gains(guesses: Sequence[Guess], seed: int = 0) -> list[SimulationGain]:
    """Compute each method's simulation gain, highest first."""
    table = pd.DataFrame(guesses, columns=list(Guess._fields)).astype({"before": float, "after": float})
    rows = []
    for method, group in table.groupby("method", sort=False):
        # Examples are resampled, not guesses: guesses of several annotators on the same example are dependent.
        gains = (group["after"] - group["before"]).groupby(group["example"]).mean().to_numpy()
        low, high = bootstrap_intervals(gains[None, None], draw_resamples(len(gains), RESAMPLES, seed))
        shares = float(group["before"].mean()), float(group["after"].mean())
        bounds = float(low[0, 0]), float(high[0, 0])
        rows.append(SimulationGain(str(method), len(group), *shares, float(np.mean(gains)), *bounds))
    return sorted(rows, key=lambda row: -row.gain)
