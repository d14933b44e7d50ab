"""Escaping of text for terminals and LaTeX, shortening, and durations in words."""

from __future__ import annotations

import re

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
