"""Data goes to standard output, talk to standard error."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path

    from exegete.reports.tables.leaderboard import Leaderboard

PIPE_WIDTH = 200


def console() -> Console:
    """Standard output; in a pipe wide enough for a table's columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, soft_wrap=False)


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{text}\n")


def show(board: Leaderboard, folder: Path) -> None:
    """A comparison's verdict and table; at the end, where it is seen first, the best method and where the report is."""
    from exegete.reports.highlighted.pieces import clean
    from exegete.reports.tables.terminal_table import table
    from exegete.reports.tables.verdict import summary, verdict

    console().print(clean(verdict(board)), markup=False, highlight=False)
    console().print(table(board))
    say(summary(board))
    say(f"report: {folder / 'report.html'}")


def hush() -> None:
    """Keeps the progress bars and remarks of Hugging Face's libraries out of the way of our own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
