"""Data goes to standard output, talk to standard error."""

from __future__ import annotations

import shutil
import sys

from rich.console import Console

PIPE_WIDTH = 200


def console() -> Console:
    """Standard output; in a pipe wide enough for a table's columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, soft_wrap=False)


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{text}\n")


def hush() -> None:
    """Keeps the progress bars and remarks of Hugging Face's libraries out of the way of our own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
