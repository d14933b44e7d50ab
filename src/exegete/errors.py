"""Errors that are due to the input, not the code: one clear line for a person."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ExegeteError(ValueError):
    """Bad input. The message says what was expected, what came and what to do; the command line exits with 2."""


def unknown(what: str, name: str, valid: Iterable[str]) -> ExegeteError:
    """The error for a name outside a registry; it lists the valid names and the closest one."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ExegeteError(f"unknown {what} {name!r}.{hint} Valid choices: {', '.join(names)}")


def brief(text: object, length: int = 300) -> str:
    """The text in one line of at most `length` characters, its middle left out where it is longer."""
    line = " ".join(str(text).split())
    half = (length - 3) // 2
    return line if len(line) <= length else f"{line[: length - 3 - half]}...{line[-half:]}"
