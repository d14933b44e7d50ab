"""A leaderboard as a LaTeX table with the package booktabs."""

from __future__ import annotations

from exegete.reports.tables.cells import ABSENT, BEST, TableCell, make_cells
from exegete.reports.tables.leaderboard import Leaderboard
from exegete.reports.text import escape_latex


def render_board_latex(board: Leaderboard, caption: str = "", label: str = "") -> str:
    """Return a `table` environment with means and 95 % intervals; `caption` and `label` are plain text.

    The number of examples and the meaning of brackets and bold numbers are added to the caption.
    """
    head = " & ".join(["Method", *(escape_latex(card.title) for card in board.cards)])
    body = [_row(name, row) for name, row in zip(board.titles, make_cells(board), strict=True)]
    count = int(board.count.max(initial=0))
    note = f"Means over {count} example{'' if count == 1 else 's'}, with 95 % bootstrap intervals in brackets."
    note = f"{note} Bold numbers are {BEST}."
    if caption:
        note = f"{caption.rstrip('.')}. {note}"
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * len(board.cards)}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{escape_latex(note)}}}",
    ]
    if label:
        lines.append(rf"\label{{{label}}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _row(name: str, row: list[TableCell]) -> str:
    return " & ".join([escape_latex(name), *(_cell(cell) for cell in row)]) + r" \\"


def _cell(cell: TableCell) -> str:
    if cell.mean == ABSENT:
        return "--"
    mean = rf"\textbf{{{cell.mean}}}" if cell.best else cell.mean
    if not cell.interval:
        return mean
    interval = f"[{cell.interval.replace(' … ', ', ')}]"
    return f"{mean} {{\\scriptsize {escape_latex(interval)}}}"
