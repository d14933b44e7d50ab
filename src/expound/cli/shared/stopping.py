"""Signals: a stopped command says in one line what was saved and how to resume."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Lists, because the signal handler and the command share one mutable value each.
_message: list[str] = []
_signals: list[int] = []


def set_stop_message(message: str) -> None:
    """Set what a stopped command prints from now on."""
    _message[:] = [message]


def stop_message() -> str:
    """Return the line that a stopped command prints."""
    return f"stopped: {_message[0] if _message else 'nothing was saved, the same command starts again'}"


@contextmanager
def handle_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into a KeyboardInterrupt with the signal as its argument, inside the block."""
    _message.clear()
    _signals.clear()
    # Python lets only the main thread set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        _signals[:] = [number]
        raise KeyboardInterrupt(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def last_signal() -> int | None:
    """Return the last signal that was received, None without a signal."""
    return _signals[-1] if _signals else None


def ending_signal(end: SystemExit) -> int | None:
    """Return the signal that ended a command, None if it ended by itself."""
    # Typer turns a KeyboardInterrupt into a SystemExit, which keeps it as the cause of its context.
    interrupt = getattr(end.__context__, "__cause__", None)
    if not isinstance(interrupt, KeyboardInterrupt):
        return None
    return int(interrupt.args[0]) if interrupt.args else int(signal.SIGINT)
