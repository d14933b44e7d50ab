"""The difference of two figures over seeds and examples, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from expound.errors import ExpoundError
from expound.reports.tables.significance import Floats, Summands

LEVEL, POWER = 0.95, 0.8


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
