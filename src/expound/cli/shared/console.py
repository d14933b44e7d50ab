"""Output of commands: results on standard output, messages on standard error."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from expound.reports.tables.leaderboard import Leaderboard

PIPE_WIDTH = 200


def console() -> Console:
    """Return a console on standard output: as wide as the terminal or $COLUMNS, in a pipe as wide as most tables."""
    return Console(width=shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, soft_wrap=False)


def say(text: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"{text}\n")


def show_leaderboard(board: Leaderboard, folder: Path) -> None:
    """Print a comparison's table, then its verdict, disagreements between metrics, and the path of the report."""
    from expound.reports.tables.board_table import format_disagreements, format_verdict, make_board_table
    from expound.reports.text import replace_control_characters

    console().print(make_board_table(board))
    for line in (format_verdict(board), *format_disagreements(board)):
        console().print(replace_control_characters(line), markup=False, highlight=False)
    say(f"report: {folder / 'report.html'}")


def show_difference(changes: pd.DataFrame, folder: Path, before: str, after: str) -> None:
    """Print the differences between two named comparisons, and write them to difference.csv in the folder."""
    from expound.data.atomic_files import atomic_file
    from expound.reports.tables.board_table import make_difference_table, summarize_difference
    from expound.reports.text import escape_formula

    console().print(f"before: {before}; after: {after}", markup=False, highlight=False)
    console().print(make_difference_table(changes))
    console().print(summarize_difference(changes), markup=False, highlight=False)
    with atomic_file(folder / "difference.csv") as fresh:
        changes.assign(method=changes["method"].map(escape_formula)).to_csv(fresh, index=False)


def silence_libraries() -> None:
    """Turn off the progress bars and warnings of Hugging Face libraries, which would break our own progress bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
