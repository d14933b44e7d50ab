"""Flags for people whose answers may say nothing: too fast, checks missed, always the same."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

TOO_FAST, CHECKS_MISSED, ALL_ALIKE = "too fast", "checks missed", "all alike"
TOO_FAST_SHARE = 1 / 3
"""A person is too fast below this share of the others' median time on an example."""
MIN_ANSWERS = 4
"""Answers below which equal ones are no sign of anything."""


@dataclass(frozen=True)
class AnnotatorWork:
    """The work of one person. `given`: each answer as it stood on the page, places instead of methods.

    `seconds`: on each example, where the clock is believed; `checks`: whether each check was passed.
    """

    person: str
    seconds: Sequence[float]
    given: Sequence[Hashable]
    checks: Sequence[bool] = ()


@dataclass(frozen=True)
class Quality:
    """A person's median time on an example (NaN: unknown), how many checks were missed of how many, and flags."""

    person: str
    seconds: float
    missed: int
    checks: int
    flags: tuple[str, ...]

    @property
    def is_careless(self) -> bool:
        """Whether anything is flagged."""
        return bool(self.flags)


def assess_quality(people: Sequence[AnnotatorWork], *, fastest: float | None = None, missed: int = 0) -> list[Quality]:
    """Every person's quality.

    Args:
        people: what each one did.
        fastest: seconds on an example, in the median, below which somebody is too fast; default: a third of the median
            of all people's medians.
        missed: how many checks somebody may miss.
    """
    times = {work.person: median(work.seconds) for work in people if work.seconds}
    bound = fastest if fastest is not None else TOO_FAST_SHARE * median(times.values()) if len(times) > 1 else 0.0
    return [_assess_one(work, times.get(work.person), bound, missed) for work in people]


def _assess_one(work: AnnotatorWork, seconds: float | None, bound: float, missed: int) -> Quality:
    wrong = sum(not passed for passed in work.checks)
    found: dict[str, Any] = {
        TOO_FAST: seconds is not None and seconds < bound,
        CHECKS_MISSED: wrong > missed,
        ALL_ALIKE: len(work.given) >= MIN_ANSWERS and len(set(work.given)) == 1,
    }
    flags = tuple(name for name, true in found.items() if true)
    return Quality(work.person, float("nan") if seconds is None else seconds, wrong, len(work.checks), flags)
