"""`expound count-marks`: how much of a file of reviews is marked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def count_marks(file: Annotated[Path, typer.Argument(help="A file that the reader `starred` reads.")]) -> None:
    """Print the number of reviews, and the share of their characters that are marked as evidence."""
    # heavy imports wait until the command runs, so that `expound --help` stays quick
    import expound

    rows = expound.load_data(f"starred:{file}", "all")
    marked = sum(end - start for row in rows for start, end in row["rationale"])
    typer.echo(f"{len(rows)} reviews, {marked / sum(map(len, rows['text'])):.0%} marked")
