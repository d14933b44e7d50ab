"""A leaderboard as a LaTeX table (package booktabs; bold: nothing is told apart as better)."""

from __future__ import annotations

from exegete.reports.tables.cells import ABSENT, BEST, TableCell, make_cells
from exegete.reports.tables.leaderboard import Leaderboard

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "…": r"\,\ldots{}\,",
    "[": "{[}",
    "]": "{]}",
}


def escape_latex(text: str) -> str:
    """The text as LaTeX shows it literally, on one line."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def render_board_latex(board: Leaderboard, caption: str = "", label: str = "") -> str:
    """A `table` environment with the means and their 95 % intervals; `caption` and `label` are plain text.

    How many examples there are and what brackets and bold numbers mean stands behind the caption.
    """
    head = " & ".join(["Method", *(escape_latex(card.title) for card in board.cards)])
    body = [_row(name, row) for name, row in zip(board.titles, make_cells(board), strict=True)]
    many = int(board.count.max(initial=0))
    note = f"Means over {many} example{'' if many == 1 else 's'}, in brackets 95 % bootstrap intervals. Bold: {BEST}."
    said = caption.rstrip(".")
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
        rf"\caption{{{escape_latex(f'{said}. {note}' if caption else note)}}}",
        *([rf"\label{{{label}}}"] if label else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, row: list[TableCell]) -> str:
    return " & ".join([escape_latex(name), *(_cell(cell) for cell in row)]) + r" \\"


def _cell(cell: TableCell) -> str:
    if cell.mean == ABSENT:
        return "--"
    mean = rf"\textbf{{{cell.mean}}}" if cell.best else cell.mean
    interval = f"[{cell.interval.replace(' … ', ', ')}]"
    return f"{mean} {{\\scriptsize {escape_latex(interval)}}}" if cell.interval else mean
