"""Simulatability: how well a student predicts its teacher's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expound.errors import ExpoundError, check_choice


def simulatability(task: str, student: ArrayLike, teacher: ArrayLike) -> float:
    """Return SIM of a student and its teacher on the same examples (Fernandes et al. 2022, eq. 1); higher is better.

    Args:
        task: `classification`: the share of equal classes [n]; `regression`: Pearson's correlation of values [n], NaN
            if either side is constant; `span`: the share of equal spans [n, 2].
        student: the student's predictions, given without explanations.
        teacher: the teacher's predictions, in the same order.

    Raises:
        ExpoundError: another task, no predictions, or not as many of the student as of the teacher.
    """
    check_choice("task with a simulatability", task, SCORES)
    one, other = np.asarray(student), np.asarray(teacher)
    if one.shape != other.shape or not len(one):
        raise ExpoundError(f"expected as many predictions of student and teacher, got {one.shape} and {other.shape}")
    return SCORES[task](one, other)


def simulatability_gain(explained: float, unexplained: float) -> float:
    """Return (e − u) / (1 − u): the share of the wrong guesses without explanations that explanations correct.

    Negative if explanations mislead; NaN if no guess was wrong without them.

    Args:
        explained: share of correct guesses by students or people with explanations.
        unexplained: the same without explanations.
    """
    if unexplained < 1:
        return (explained - unexplained) / (1 - unexplained)
    return float("nan")


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """Return Pearson's correlation of two series; NaN if either is constant."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / norm) if norm else float("nan")


SCORES: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
    "classification": lambda one, other: float((one == other).mean()),
    "regression": pearson,
    "span": lambda one, other: float((one == other).all(-1).mean()),
}
