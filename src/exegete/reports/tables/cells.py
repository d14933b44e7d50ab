"""A leaderboard as short strings, which terminal, HTML and LaTeX dress in their own way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exegete.reports.tables.leaderboard import Floats, Leaderboard

ABSENT = "–"
BEST = "the best of their column, or not told apart from it (paired bootstrap over the same examples, Holm, 5 %)"
CHANCE = "no better than random"


@dataclass(frozen=True, slots=True)
class TableCell:
    """One number of a table: `mean` and `interval` as text, whether nothing is told apart as better, its examples."""

    value: float
    mean: str
    interval: str
    best: bool
    count: int
    partial: bool


def make_cells(board: Leaderboard) -> list[list[TableCell]]:
    """The cells of the table, [R][C]; `partial` where the metric was undefined for some examples."""
    columns = [_column_cells(board, column) for column in range(len(board.cards))]
    return [[column[row] for column in columns] for row in range(len(board.rows))]


def choose_decimals(column: Floats) -> list[int]:
    """How many decimals each number of a column is shown with.

    Below 10 all have the same, three significant digits of the largest; else each has three significant digits of its
    own, so that milliseconds stand beside minutes.
    """
    finite = np.where(np.isfinite(column), np.abs(column), 0.0)
    top = float(finite.max(initial=0.0))
    if top < 10:
        return [max(3, _decimals_for(top))] * len(finite)
    return [_decimals_for(value) for value in finite.tolist()]


def _decimals_for(value: float) -> int:
    return 3 if value == 0 or not math.isfinite(value) else min(8, max(0, 2 - math.floor(math.log10(value))))


def _column_cells(board: Leaderboard, column: int) -> list[TableCell]:
    most = int(board.count.max(initial=0))
    mean = board.mean[:, column]
    cost = board.cards[column].family == "cost"
    digits = [min(9, max(0, _decimals_for(value) - 1)) for value in mean.tolist()] if cost else choose_decimals(mean)
    numbers = (array[:, column].tolist() for array in (board.mean, board.low, board.high, board.best, board.count))
    return [
        TableCell(mean, *_format_mean(mean, low, high, places), best, count, count < most)
        for mean, low, high, best, count, places in zip(*numbers, digits, strict=True)
    ]


def _format_mean(mean: float, low: float, high: float, digits: int) -> tuple[str, str]:
    if not math.isfinite(mean):
        return ABSENT, ""
    interval = f"{low:.{digits}f} … {high:.{digits}f}" if math.isfinite(low) else ""
    return f"{mean:.{digits}f}", interval
