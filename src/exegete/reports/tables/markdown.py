"""A leaderboard as a Markdown table: bold where nothing is told apart as better."""

from __future__ import annotations

from collections.abc import Sequence

from exegete.reports.tables.cells import BEST, CHANCE, make_cells
from exegete.reports.tables.leaderboard import Leaderboard
from exegete.reports.tables.verdict import format_verdict


def render_board_markdown(board: Leaderboard) -> str:
    """The verdict, a pipe table of means and their 95 % intervals, and a legend."""
    lines = [
        _markdown_line(["method", *(card.title for card in board.cards)]),
        _markdown_line(["---", *["---:"] * len(board.cards)]),
    ]
    for name, weak, row in zip(board.rows, board.chance, make_cells(board), strict=True):
        shown = [f"{f'**{cell.mean}**' if cell.best else cell.mean} {cell.interval}".strip() for cell in row]
        lines.append(_markdown_line([f"{name} ({CHANCE})" if weak else name, *shown]))
    legend = f"Bold numbers are {BEST}; beside each stands its 95 % bootstrap interval."
    return "\n".join([format_verdict(board), "", *lines, "", legend, ""])


def _markdown_line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(part.split()).replace('|', chr(92) + '|') for part in parts)} |"
