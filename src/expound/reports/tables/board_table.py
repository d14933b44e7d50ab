"""A leaderboard as a table of short strings, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from expound.reports.table import BOLD, Cell, Table, format_csv
from expound.reports.tables.leaderboard import CHANCE, CONFIDENCE, LEVEL, Floats, Leaderboard
from expound.reports.tables.verdict import format_verdict

if TYPE_CHECKING:
    import pandas as pd

ABSENT = "–"
BEST = "the best of their column, or not significantly worse (paired bootstrap over the same examples, Holm, 5 %)"
INTERVAL = f"its {CONFIDENCE:.0f} % bootstrap interval"


def make_board_table(board: Leaderboard, head: str = "method", names: Sequence[str] = ()) -> Table:
    """Return the table: means with intervals, the best bold, methods at chance marked; `names`: other than the titles.

    A narrow terminal keeps the first metric, and seconds as long as two columns fit.
    """
    rows = []
    for name, title, at_chance in zip(board.rows, names or board.titles, board.chance, strict=True):
        rows.append([Cell(title, value=title, tip=name, note=CHANCE if at_chance else "")])
    for column in range(len(board.cards)):
        for row, cell in zip(rows, _make_column(board, column), strict=True):
            row.append(cell)
    columns = range(len(board.cards))
    important = sorted(columns, key=lambda column: (column > 0, board.cards[column].name != "seconds"))
    return Table(
        [head, *(card.title for card in board.cards)],
        rows,
        keys=board.rows,
        important=[column + 1 for column in important],
        meanings=(BEST, INTERVAL, "n if a metric is defined for some examples only"),
    )


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


def _make_column(board: Leaderboard, column: int) -> list[Cell]:
    examples = int(board.count.max(initial=0))
    means = board.mean[:, column]
    digits = choose_decimals(means)
    if board.cards[column].family == "cost":
        # Costs vary from run to run: two significant digits are all that can be reproduced.
        digits = [min(9, max(0, _decimals_for(value) - 1)) for value in means.tolist()]
    cells = []
    for row, places in enumerate(digits):
        mean, low, high = (float(array[row, column]) for array in (board.mean, board.low, board.high))
        text, interval = ABSENT, ""
        if math.isfinite(mean):
            text = f"{mean:.{places}f}"
            interval = f"{low:.{places}f} … {high:.{places}f}" if math.isfinite(low) else ""
        count = int(board.count[row, column])
        note = f"n={count}" if count < examples else ""
        cells.append(Cell(text, int(board.best[row, column]), interval=interval, note=note, value=mean))
    return cells


def render_board_markdown(board: Leaderboard) -> str:
    """Return the verdict, a pipe table of means and their 95 % intervals, and a legend."""
    names = []
    for name, at_chance in zip(board.rows, board.chance, strict=True):
        names.append(f"{name} ({CHANCE})" if at_chance else name)
    legend = f"Bold numbers are {BEST}; beside each is {INTERVAL}."
    return f"{format_verdict(board)}\n\n{make_board_table(board, names=names).to_markdown()}\n\n{legend}\n"


def render_board_latex(board: Leaderboard, caption: str = "", label: str = "") -> str:
    """Return a `table` environment with means and 95 % intervals; `caption` and `label` are plain text.

    The number of examples and the meaning of brackets and bold numbers are added to the caption.
    """
    count = int(board.count.max(initial=0))
    note = f"Means over {count} example{'' if count == 1 else 's'}, with 95 % bootstrap intervals in brackets."
    note = f"{note} Bold numbers are {BEST}."
    if caption:
        note = f"{caption.rstrip('.')}. {note}"
    return f"% \\usepackage{{booktabs}}\n{make_board_table(board, 'Method').to_latex(note, label)}"


def render_board_csv(board: Leaderboard) -> str:
    """Return one line per method: `method`, then `<metric>_mean`, `_low`, `_high`, `_count`; NaN is empty."""
    ends = {"_mean": board.mean, "_low": board.low, "_high": board.high, "_count": board.count}
    return format_csv("method", board.rows, [card.name for card in board.cards], ends)


def make_difference_table(changes: pd.DataFrame, titles: Mapping[str, str] | None = None) -> Table:
    """Return the table of what changed from one model to another, significant differences bold.

    Args:
        changes: the columns of `compute_difference`.
        titles: of methods and metrics, by name; default: the names.
    """
    titles, rows = titles or {}, []
    for row in changes.to_dict("records"):
        cells = [
            Cell(titles.get(row[name], row[name]), value=row[name], tip=row[name]) for name in ("method", "metric")
        ]
        cells += [Cell(f"{row[name]:.3f}", value=row[name]) for name in ("before", "after")]
        change, rank = row["difference"], BOLD if row["p"] <= LEVEL else 0
        cells.append(Cell(f"{change:+.3f}", rank, value=change))
        cells.append(Cell(f"{row['low']:+.3f}…{row['high']:+.3f}", value=row["low"]))
        cells.append(Cell(ABSENT if math.isnan(row["p"]) else f"{row['p']:.2g}", value=row["p"]))
        rows.append(cells)
    head = ("method", "metric", "before", "after", "difference", "95 % interval", "p")
    return Table(head, rows, texts=2, keys=changes["method"].tolist(), meanings=("significant differences", "", ""))


def summarize_difference(changes: pd.DataFrame) -> str:
    """Return in one sentence how many of the differences are significant."""
    p = changes["p"].dropna()
    return (
        f"{(p <= LEVEL).sum()} of {len(p)} differences are significant "
        "(paired bootstrap over the same examples, Holm, 5 %)."
    )
