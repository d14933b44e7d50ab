"""A leaderboard as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

from exegete.reports.tables.cells import ABSENT, BEST, CHANCE, TableCell, make_cells
from exegete.reports.tables.leaderboard import Leaderboard
from exegete.reports.tables.verdict import format_verdict
from exegete.reports.text import escape_latex, format_csv, format_latex_table, format_markdown_lines


def render_board_markdown(board: Leaderboard) -> str:
    """Return the verdict, a pipe table of means and their 95 % intervals, and a legend."""
    rows = []
    for name, at_chance, cells in zip(board.rows, board.chance, make_cells(board), strict=True):
        texts = [f"{name} ({CHANCE})" if at_chance else name]
        for cell in cells:
            mean = f"**{cell.mean}**" if cell.best else cell.mean
            texts.append(f"{mean} {cell.interval}".strip())
        rows.append(texts)
    lines = format_markdown_lines(["method", *(card.title for card in board.cards)], rows)
    legend = f"Bold numbers are {BEST}; beside each is its 95 % bootstrap interval."
    return "\n".join([format_verdict(board), "", *lines, "", legend, ""])


def render_board_latex(board: Leaderboard, caption: str = "", label: str = "") -> str:
    """Return a `table` environment with means and 95 % intervals; `caption` and `label` are plain text.

    The number of examples and the meaning of brackets and bold numbers are added to the caption.
    """
    count = int(board.count.max(initial=0))
    note = f"Means over {count} example{'' if count == 1 else 's'}, with 95 % bootstrap intervals in brackets."
    note = f"{note} Bold numbers are {BEST}."
    if caption:
        note = f"{caption.rstrip('.')}. {note}"
    rows = []
    for name, cells in zip(board.titles, make_cells(board), strict=True):
        rows.append([escape_latex(name), *map(_format_latex_cell, cells)])
    head = ["Method", *(card.title for card in board.cards)]
    return f"% \\usepackage{{booktabs}}\n{format_latex_table(head, rows, note, label)}"


def _format_latex_cell(cell: TableCell) -> str:
    if cell.mean == ABSENT:
        return "--"
    mean = rf"\textbf{{{cell.mean}}}" if cell.best else cell.mean
    if not cell.interval:
        return mean
    interval = f"[{cell.interval.replace(' … ', ', ')}]"
    return f"{mean} {{\\scriptsize {escape_latex(interval)}}}"


def render_board_csv(board: Leaderboard) -> str:
    """Return one line per method: `method`, then `<metric>_mean`, `_low`, `_high`, `_count`; NaN is empty."""
    head = ["method"]
    for card in board.cards:
        head += [f"{card.name}_{end}" for end in ("mean", "low", "high", "count")]
    rows = []
    for row, name in enumerate(board.rows):
        fields: list[str | float | int] = [name]
        for column in range(len(board.cards)):
            fields += [float(array[row, column]) for array in (board.mean, board.low, board.high)]
            fields.append(int(board.count[row, column]))
        rows.append(fields)
    return format_csv(head, rows)
