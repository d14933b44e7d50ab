"""How well a student foretells its teacher: the share of equal answers, or how closely values go together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exegete.errors import ExegeteError, unknown


def simulatability(task: str, student: ArrayLike, teacher: ArrayLike) -> float:
    """SIM (Fernandes et al. 2022, eq. 1), higher is better; both answered the same examples, without explanations.

    Args:
        task: `classification`: the share of equal classes [n]; `regression`: Pearson's correlation of values [n], NaN
            where either side is constant; `span`: the share of equal spans [n, 2].
        student: its answers.
        teacher: its answers, in the same order.

    Raises:
        ExegeteError: another task, no answers, or not one of each side for every example.
    """
    if task not in SCORES:
        raise unknown("task with a simulatability", task, SCORES)
    one, other = np.asarray(student), np.asarray(teacher)
    if one.shape != other.shape or not len(one):
        raise ExegeteError(f"expected as many answers of student and teacher, got {one.shape} and {other.shape}")
    return SCORES[task](one, other)


def simulatability_gain(explained: float, unexplained: float) -> float:
    """(a − u) / (1 − u): of what is guessed wrong without explanations, the share that is right with them.

    Negative where explanations mislead; NaN where nothing was wrong.

    Args:
        explained: share of right guesses by students, people or a chat model that had explanations.
        unexplained: the same of those that had none.
    """
    return (explained - unexplained) / (1 - unexplained) if unexplained < 1 else float("nan")


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """The correlation of two series; NaN where either is constant."""
    a, b = (values - values.mean() for values in (np.asarray(one, np.float64), np.asarray(other, np.float64)))
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / norm) if norm else float("nan")


def _agreement(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float((one == other).mean())


def _same_spans(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float((one == other).all(-1).mean())


SCORES: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
    "classification": _agreement,
    "regression": pearson,
    "span": _same_spans,
}
