"""A paper's claims as conditions on effects, and the verdict that an effect's interval gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expound.reports.tables.significance import Effect

REPRODUCED, CONTRADICTED, UNDECIDED, NOT_TESTED = "reproduced", "contradicted", "undecided", "not tested"
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


def format_effect(effect: Effect, condition: Condition, form: str) -> str:
    """Return an effect with its interval in a number format; with what is claimed if that is more than its sign."""
    text = f"{effect.center:{form}}"
    if not np.isnan(effect.margin):
        low, high = effect.center - effect.margin, effect.center + effect.margin
        text += f" [{low:{form}}, {high:{form}}]"
    text = text.replace("-", "−")
    return text if 0 in (condition.low, condition.high) else f"{text} (claimed {condition.text})"


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
