"""Figures of runs that come from several runs: how alike their attributions are to those of others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expound.data.registry import parse_spec
from expound.errors import ExpoundError, check_choice
from expound.metrics.agreement import jaccard


def kendall_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Return Kendall's τ-b of two lists of scores; NaN for fewer than two scores or if one list is constant."""
    from scipy.stats import kendalltau

    left, right = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    # scipy returns NaN for these cases too, but with a warning.
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(kendalltau(left, right, variant="b").statistic)


Measure: TypeAlias = Callable[[NDArray[np.float64], NDArray[np.float64]], float]

MEASURES: dict[str, Callable[..., float]] = {"kendall": kendall_tau, "jaccard": jaccard}
"""How alike two lists of scores of one example are, by name; NaN where that is not defined."""


def get_measure(spec: str) -> Measure:
    """A measure by name, with parameters as in `jaccard?share=0.25`.

    Raises:
        ExpoundError: an unknown name or parameter, or a value that is no number.
    """
    name, given = parse_spec(spec)
    check_choice("measure", name, MEASURES)
    valid = list(inspect.signature(MEASURES[name]).parameters)[2:]
    for key in given:
        check_choice(f"parameter of {name}", key, valid)
    try:
        return partial(MEASURES[name], **{key: float(value) for key, value in given.items()})
    except ValueError as error:
        raise ExpoundError(f"{spec!r}: expected numbers: {error}") from error


def mean_defined(values: Iterator[float] | Sequence[float]) -> float:
    """Return the mean of the defined values, NaN if all are undefined."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def mean_similarity(one: Sequence[Any], other: Sequence[Any], how: Measure) -> float:
    """The mean over examples of a measure of both lists' scores."""
    return mean_defined([how(a, b) for a, b in zip(one, other, strict=True)])
