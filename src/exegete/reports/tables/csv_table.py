"""A leaderboard as comma-separated values, with all digits."""

from __future__ import annotations

import csv
import io
import math

from exegete.reports.tables.leaderboard import Leaderboard


def render_board_csv(board: Leaderboard) -> str:
    """Return one line per method: `method`, then `<metric>_mean`, `_low`, `_high`, `_count`; NaN is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = ("mean", "low", "high", "count")
    heads = ["method"]
    for card in board.cards:
        heads += [f"{card.name}_{end}" for end in ends]
    writer.writerow(heads)
    for row, name in enumerate(board.rows):
        line = [name]
        for column in range(len(board.cards)):
            for array in (board.mean, board.low, board.high):
                value = float(array[row, column])
                # repr gives the shortest digits that read back as the same number.
                line.append("" if math.isnan(value) else repr(value))
            line.append(str(int(board.count[row, column])))
        writer.writerow(line)
    return out.getvalue()
