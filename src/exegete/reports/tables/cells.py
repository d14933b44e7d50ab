"""The cells of a leaderboard as short strings, which terminal, HTML and LaTeX format in their own way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exegete.reports.tables.leaderboard import Floats, Leaderboard

ABSENT = "–"
BEST = "the best of their column, or not significantly worse (paired bootstrap over the same examples, Holm, 5 %)"
CHANCE = "no better than random"


@dataclass(frozen=True, slots=True)
class TableCell:
    """One number of a table: its mean and interval as text, and over how many examples it is.

    `best`: whether no other method of the column is significantly better. `partial`: whether the metric is undefined
    for some examples.
    """

    value: float
    mean: str
    interval: str
    best: bool
    count: int
    partial: bool


def make_cells(board: Leaderboard) -> list[list[TableCell]]:
    """Return the cells of the table, [R][C]."""
    rows: list[list[TableCell]] = [[] for _ in board.rows]
    for column in range(len(board.cards)):
        for row, cell in zip(rows, _column_cells(board, column), strict=True):
            row.append(cell)
    return rows


def choose_decimals(column: Floats) -> list[int]:
    """Return the number of decimals for each number of a column.

    If all are below 10, they share the decimals that give the largest three significant digits (at least 3 decimals);
    otherwise each number gets three significant digits.
    """
    magnitudes = np.where(np.isfinite(column), np.abs(column), 0.0)
    largest = float(magnitudes.max(initial=0.0))
    if largest < 10:
        return [max(3, _decimals_for(largest))] * len(magnitudes)
    # Shared decimals would show milliseconds as 0 beside minutes.
    return [_decimals_for(value) for value in magnitudes.tolist()]


def _decimals_for(value: float) -> int:
    if value == 0 or not math.isfinite(value):
        return 3
    return min(8, max(0, 2 - math.floor(math.log10(value))))


def _column_cells(board: Leaderboard, column: int) -> list[TableCell]:
    examples = int(board.count.max(initial=0))
    means = board.mean[:, column]
    if board.cards[column].family == "cost":
        # Costs vary from run to run: two significant digits are all that can be reproduced.
        digits = [min(9, max(0, _decimals_for(value) - 1)) for value in means.tolist()]
    else:
        digits = choose_decimals(means)
    cells = []
    for row, places in enumerate(digits):
        mean, count = float(means[row]), int(board.count[row, column])
        texts = _format_mean(mean, float(board.low[row, column]), float(board.high[row, column]), places)
        cells.append(TableCell(mean, *texts, bool(board.best[row, column]), count, count < examples))
    return cells


def _format_mean(mean: float, low: float, high: float, digits: int) -> tuple[str, str]:
    if not math.isfinite(mean):
        return ABSENT, ""
    interval = f"{low:.{digits}f} … {high:.{digits}f}" if math.isfinite(low) else ""
    return f"{mean:.{digits}f}", interval
