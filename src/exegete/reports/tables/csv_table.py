"""A leaderboard as comma-separated values, with every digit."""

from __future__ import annotations

import csv
import io
import math

from exegete.reports.tables.leaderboard import Leaderboard


def render_board_csv(board: Leaderboard) -> str:
    """One line a method: `method`, then `<metric>_mean`, `_low`, `_high` and `_count`; an undefined number is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = ("mean", "low", "high", "count")
    writer.writerow(["method", *(f"{card.name}_{end}" for card in board.cards for end in ends)])
    for row, name in enumerate(board.rows):
        writer.writerow([name, *(text for column in range(len(board.cards)) for text in _numbers(board, row, column))])
    return out.getvalue()


def _numbers(board: Leaderboard, row: int, column: int) -> list[str]:
    values = [float(array[row, column]) for array in (board.mean, board.low, board.high)]
    return [*("" if math.isnan(value) else repr(value) for value in values), str(int(board.count[row, column]))]
