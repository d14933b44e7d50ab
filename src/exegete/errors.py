"""Errors that are due to the input, not the code: one clear line for a person."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ExegeteError(ValueError):
    """Bad input. The message says what was expected, what came and what to do; the command line exits with 2."""


class Stopped(ExegeteError):  # noqa: N818  # no error: a signal asked for it
    """A signal stopped a training that something else needs; what it has done is kept, and the same call goes on."""

    def __init__(self, message: str, signal: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal


def unknown(what: str, name: str, valid: Iterable[str]) -> ExegeteError:
    """The error for a name outside a registry; it lists the valid names and the closest one."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ExegeteError(f"unknown {what} {name!r}.{hint} Valid choices: {', '.join(names)}")


def shorten(text: object, length: int = 300) -> str:
    """The text in one line of at most `length` characters, its middle left out where it is longer."""
    line = " ".join(str(text).split())
    half = (length - 3) // 2
    return line if len(line) <= length else f"{line[: length - 3 - half]}...{line[-half:]}"
