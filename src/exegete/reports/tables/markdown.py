"""A leaderboard as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from exegete.reports.tables.cells import BEST, CHANCE, make_cells
from exegete.reports.tables.leaderboard import Leaderboard
from exegete.reports.tables.verdict import format_verdict


def render_board_markdown(board: Leaderboard) -> str:
    """Return the verdict, a pipe table of means and their 95 % intervals, and a legend."""
    lines = [_line(["method", *(card.title for card in board.cards)]), _line(["---", *["---:"] * len(board.cards)])]
    for name, at_chance, row in zip(board.rows, board.chance, make_cells(board), strict=True):
        texts = [f"{name} ({CHANCE})" if at_chance else name]
        for cell in row:
            mean = f"**{cell.mean}**" if cell.best else cell.mean
            texts.append(f"{mean} {cell.interval}".strip())
        lines.append(_line(texts))
    legend = f"Bold numbers are {BEST}; beside each is its 95 % bootstrap interval."
    return "\n".join([format_verdict(board), "", *lines, "", legend, ""])


def _line(cells: Sequence[str]) -> str:
    # A line break or an unescaped bar in a method's name would break the table.
    texts = [" ".join(cell.split()).replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(texts)} |"
