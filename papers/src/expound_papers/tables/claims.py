"""A paper's claims as conditions on effects, and the verdict that an effect's interval gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from expound.errors import ExpoundError
from expound.reports.tables.leaderboard import Floats
from expound.reports.tables.significance import Summands

REPRODUCED, CONTRADICTED, UNDECIDED, NOT_TESTED = "reproduced", "contradicted", "undecided", "not tested"
LEVEL, POWER = 0.95, 0.8
LEGEND = """\
Each figure of a claim has a 95 % interval: Student's t over seeds and the jackknife over examples,
combined as the root of the sum of their squares; ‡ over seeds alone, as figures of single examples are not stored.
These intervals are wider than those of tests over the examples of the same trained models (†).

The verdict is computed from the intervals of a row; it is about the models and the training of this page.
**reproduced**: all are inside the claim. **contradicted**: one of them is outside of it. **undecided**: neither; in
brackets the effects that these tests would find in 80 of 100 such studies, as distances from what is claimed.
One seed of training alone leaves a claim undecided. **not tested**: there is no fair test here."""
CONDITION = re.compile(r"(>|<|within)\s*(-?\d*\.?\d+)")


@dataclass(frozen=True)
class Effect:
    """An effect over seeds and examples.

    Attributes:
        center: the mean over seeds.
        margin: half the width of its 95 % interval; NaN if it is unknown.
        seeds: number of pairs of runs.
        examples: number of examples that each run was judged on; None if it is unknown.
        is_over_examples: whether the interval is over examples, too, and not over seeds alone.
        is_trained: whether a run of the study trained what is compared; if not, one run is enough for a verdict.
    """

    center: float
    margin: float
    seeds: int
    examples: int | None
    is_over_examples: bool
    is_trained: bool = True

    @property
    def detectable(self) -> float:
        """The size of an effect that an interval of this width separates from 0 in 80 of 100 studies."""
        return self.margin * float(1 + norm.ppf(POWER) / norm.ppf((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Condition:
    """What a claim says about an effect: it is above `low` and below `high`."""

    low: float
    high: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Condition | None:
        """Return the condition `> NUMBER`, `< NUMBER` or `within NUMBER` (of 0); None for other texts."""
        found = CONDITION.fullmatch(text)
        if found is None:
            return None
        bound = float(found[2])
        low, high = {">": (bound, np.inf), "<": (-np.inf, bound), "within": (-bound, bound)}[found[1]]
        return cls(low, high, text.replace("-", "−"))

    def judge(self, effect: Effect) -> str:
        """Return whether the effect's interval is inside the condition, outside of it, or neither."""
        # The interval of one seed lacks the spread over seeds.
        if effect.is_trained and effect.seeds < 2:
            return UNDECIDED
        low, high = effect.center - effect.margin, effect.center + effect.margin
        if low > self.low and high < self.high:
            return REPRODUCED
        if high < self.low or low > self.high:
            return CONTRADICTED
        # An unknown margin is NaN and fails both comparisons.
        return UNDECIDED


def measure_effect(
    by_seed: Floats,
    pairs: Sequence[tuple[Summands, Summands]],
    scale: float,
    judged: int | None = None,
    *,
    is_trained: bool = True,
) -> Effect:
    """Return the effect that several runs show: the mean difference of two figures, with its 95 % interval.

    The margin is the root of the sum of two squared margins: Student's t over seeds, and the jackknife over examples of
    the mean over seeds. One of them is used alone if the other is unknown (one seed; no figures of single examples).

    Args:
        by_seed: the difference of each seed; replaced by that over the examples of all runs if there are `pairs`.
        pairs: the summands of the two figures, per seed; empty if figures of single examples are not stored.
        scale: factor of the table.
        judged: number of examples, for figures without `pairs`.
        is_trained: whether a run of the study trained what is compared.

    Raises:
        ExpoundError: the runs have no example in common.
    """
    examples, over_examples = judged, np.nan
    if pairs:
        shared = pairs[0][0].examples
        for run in chain.from_iterable(pairs):
            shared = np.intersect1d(shared, run.examples)
        if not len(shared):
            raise ExpoundError("the runs of a claim have no example in common")
        examples = len(shared)
        by_seed, by_left_out = np.zeros(len(pairs)), np.zeros((len(pairs), examples))
        for at, pair in enumerate(pairs):
            one, other = pair[0].select(shared), pair[1].select(shared)
            total, other_total = one.values.sum(0), other.values.sum(0)
            by_seed[at] = one.figure(total) - other.figure(other_total)
            by_left_out[at] = one.figure(total - one.values) - other.figure(other_total - other.values)
        jackknife = by_left_out.mean(0)
        variance = (examples - 1) * ((jackknife - jackknife.mean()) ** 2).mean()
        over_examples = float(norm.ppf((1 + LEVEL) / 2) * variance**0.5)
    seeds, over_seeds = len(by_seed), np.nan
    if seeds > 1:
        over_seeds = float(student.ppf((1 + LEVEL) / 2, seeds - 1) * by_seed.std(ddof=1) / seeds**0.5)
    margins = np.array([over_seeds, over_examples])
    known = margins[np.isfinite(margins)]
    margin = float(np.linalg.norm(known)) if len(known) else np.nan
    return Effect(float(by_seed.mean()) * scale, margin * scale, seeds, examples, bool(pairs), is_trained)


def judge_claim(tests: Sequence[tuple[Condition, Effect]]) -> str:
    """Return the verdict on a claim: reproduced if each of its conditions is, contradicted if one of them is."""
    verdicts = [condition.judge(effect) for condition, effect in tests]
    if CONTRADICTED in verdicts:
        return CONTRADICTED
    return UNDECIDED if UNDECIDED in verdicts else REPRODUCED


def format_verdict(tests: Sequence[tuple[Condition, Effect]]) -> str:
    """Return the verdict on a claim; if it is undecided, with the effects that the undecided tests could have seen."""
    verdict = judge_claim(tests)
    if verdict != UNDECIDED:
        return f"**{verdict}**"
    detectable = []
    for condition, effect in tests:
        if condition.judge(effect) == UNDECIDED and np.isfinite(effect.detectable):
            detectable.append(effect.detectable)
    return f"**{verdict}** (detectable: {_format_range(detectable, '.2g')})"


def format_size(effects: Sequence[Effect]) -> str:
    """Return the numbers of examples and of seeds of a claim's tests, as `40 × 3` or `60–100 × 3`; ‡: see LEGEND."""
    examples = [effect.examples for effect in effects if effect.examples is not None]
    seeds = [effect.seeds for effect in effects]
    mark = "" if all(effect.is_over_examples for effect in effects) else " ‡"
    return f"{_format_range(examples)} × {_format_range(seeds)}{mark}"


def _format_range(numbers: Sequence[float], form: str = "d") -> str:
    """Return the smallest and the largest number, or the only one; a dash if there is none."""
    if not numbers:
        return "–"
    return "–".join(dict.fromkeys((f"{min(numbers):{form}}", f"{max(numbers):{form}}")))
