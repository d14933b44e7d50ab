"""Flags for careless annotators: answers too fast, failed attention checks, or always the same answer."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median

TOO_FAST, CHECKS_MISSED, ALL_ALIKE = "too fast", "checks missed", "all alike"
TOO_FAST_SHARE = 1 / 3
"""An annotator is too fast below this share of the median time of all annotators."""
MIN_ANSWERS = 4
"""With fewer answers, equal ones are not suspicious."""


@dataclass(frozen=True)
class AnnotatorWork:
    """The answers of one annotator, as far as quality depends on them.

    `seconds`: time on each example, without implausible values; `displayed`: each answer by positions on the page
    instead of methods; `checks`: whether each attention check was passed.
    """

    person: str
    seconds: Sequence[float]
    displayed: Sequence[Hashable]
    checks: Sequence[bool] = ()


@dataclass(frozen=True)
class Quality:
    """An annotator's median seconds per example (NaN if unknown), missed and all attention checks, and flags."""

    person: str
    seconds: float
    missed: int
    checks: int
    flags: tuple[str, ...]

    @property
    def is_careless(self) -> bool:
        """Return whether the annotator has a flag."""
        return bool(self.flags)


def assess_quality(people: Sequence[AnnotatorWork], *, fastest: float | None = None, missed: int = 0) -> list[Quality]:
    """Compute every annotator's quality.

    Args:
        people: the work of each annotator.
        fastest: median seconds per example below which an annotator is too fast; default: a third of the median of all
            annotators' medians.
        missed: how many attention checks an annotator may miss.
    """
    times = {work.person: median(work.seconds) for work in people if work.seconds}
    # The time of a single annotator can only be compared with itself.
    minimum = TOO_FAST_SHARE * median(times.values()) if len(times) > 1 else 0.0
    if fastest is not None:
        minimum = fastest
    return [_assess_one(work, times.get(work.person, math.nan), minimum, missed) for work in people]


def _assess_one(work: AnnotatorWork, seconds: float, minimum: float, allowed: int) -> Quality:
    missed = sum(not passed for passed in work.checks)
    flags = []
    # False for NaN, an unknown time.
    if seconds < minimum:
        flags.append(TOO_FAST)
    if missed > allowed:
        flags.append(CHECKS_MISSED)
    # Answers are compared by position: always putting the first explanation first is suspicious, always preferring the
    # same method is not, as methods are shown in random order.
    if len(work.displayed) >= MIN_ANSWERS and len(set(work.displayed)) == 1:
        flags.append(ALL_ALIKE)
    return Quality(work.person, seconds, missed, len(work.checks), tuple(flags))
