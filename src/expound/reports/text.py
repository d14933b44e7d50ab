"""Text of reports, and a progress bar that appears after a second, with an estimate of the work."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

_LATEX = {
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
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    # After \\ or \begin{tabular}, LaTeX would read a bracket as an optional argument.
    "[": "{[}",
    "]": "{]}",
}


def replace_control_characters(text: str) -> str:
    """Return the text with control characters replaced by U+FFFD; line breaks and tabs stay."""
    # Escape sequences in a data set could otherwise recolor the terminal or move its cursor.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)


def escape_formula(text: str) -> str:
    """Return the text of a cell, with an apostrophe in front if a spreadsheet would run it as a formula."""
    # A stranger's =HYPERLINK(…) could send the other cells away (OWASP, CSV injection). Spreadsheets of East Asian
    # locales take the full-width signs for formulas, too.
    return f"'{text}" if text.startswith(tuple("=+-@\t\r＝＋－＠")) else text


def escape_latex(text: str) -> str:
    """Return LaTeX that typesets the text literally, on one line."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def shorten(text: str, length: int) -> str:
    """Return the text, cut with an ellipsis if it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes, hours or days, as text."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


logger = logging.getLogger(__name__)
DELAY = 1.0
"""Seconds before a bar appears."""
FORMAT = "{desc}: {percentage:3.0f} %|{bar:20}| {elapsed}, left: {remaining}{postfix}"
SLOW_FACTOR = 10.0
"""A warning is logged when the work takes this many times its estimate, …"""
SLOW_SECONDS = 5.0
"""… and at least this many seconds."""


@contextmanager
def progress_bar(
    description: str, total: float, show: bool | None = None, estimate: Callable[[], float] | None = None
) -> Iterator[Callable[[float], None]]:
    """Yield a function that adds an amount of finished work to a progress bar on stderr.

    Log messages appear above the bar. A warning is logged once when the work takes ten times its estimate.

    Args:
        description: the text before the bar.
        total: the amount of all work, in any unit.
        show: whether to show the bar; default: if stderr is a terminal or a notebook.
        estimate: returns the seconds that all work may take; called only if the bar is shown.
    """
    if show is None:
        show = is_interactive()
    with tqdm(total=total, desc=description, disable=not show, delay=DELAY, bar_format=FORMAT, leave=False) as bar:
        if bar.disable:
            yield lambda done: None
            return
        start, seconds = time.monotonic(), None if estimate is None else estimate()
        warned = False

        def appear() -> None:
            if seconds is not None and not bar.n:
                bar.set_postfix_str(f"about {tqdm.format_interval(seconds)} in all", refresh=False)
            bar.delay = 0
            bar.refresh()

        def update(done: float) -> None:
            nonlocal warned
            bar.set_postfix_str("", refresh=False)
            bar.update(done)
            elapsed = time.monotonic() - start
            limit = max(SLOW_SECONDS, SLOW_FACTOR * (seconds or 0.0) * bar.n / max(total, 1e-9))
            if not warned and seconds and elapsed > limit:
                warned = True
                logger.warning(
                    "%s takes more than ten times as long as was estimated: is the machine busy?", description
                )

        # tqdm draws only when it is updated: without a timer, nothing would appear during a long first part.
        timer = Timer(DELAY, appear)
        timer.daemon = True
        timer.start()
        try:
            with logging_redirect_tqdm():
                yield update
        finally:
            timer.cancel()
            # A timer that has just fired must not draw on a bar that is closed.
            timer.join()


def is_interactive() -> bool:
    """Return whether a person sees standard error, in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
