"""A leaderboard as a Markdown table: bold where nothing is told apart as better."""

from __future__ import annotations

from collections.abc import Sequence

from exegete.reports.tables.cells import BEST, CHANCE, cells
from exegete.reports.tables.leaderboard import Leaderboard
from exegete.reports.tables.verdict import verdict


def markdown(board: Leaderboard) -> str:
    """The verdict, a pipe table of means and their 95 % intervals, and a legend."""
    lines = [_line(["method", *(card.title for card in board.cards)]), _line(["---", *["---:"] * len(board.cards)])]
    for name, weak, row in zip(board.rows, board.chance, cells(board), strict=True):
        shown = [f"{f'**{cell.mean}**' if cell.best else cell.mean} {cell.interval}".strip() for cell in row]
        lines.append(_line([f"{name} ({CHANCE})" if weak else name, *shown]))
    legend = f"Bold numbers are {BEST}; beside each stands its 95 % bootstrap interval."
    return "\n".join([verdict(board), "", *lines, "", legend, ""])


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(part.split()).replace('|', chr(92) + '|') for part in parts)} |"
