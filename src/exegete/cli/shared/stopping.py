"""A command that is stopped says in one line what is kept, and how it goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_kept: list[str] = []
_asked: list[int] = []


def keeping(what: str) -> None:
    """From here on the command leaves this when it is stopped."""
    _kept[:] = [what]


def left() -> str:
    """The line that a stopped command prints."""
    return f"stopped: {_kept[0] if _kept else 'nothing was kept, the same command begins again'}"


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside the block SIGTERM is what Ctrl-C is: a KeyboardInterrupt with the signal as its argument."""
    _kept.clear()
    _asked.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        _asked[:] = [number]
        raise KeyboardInterrupt(number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def asked() -> int | None:
    """The last signal that asked the command to stop."""
    return _asked[-1] if _asked else None


def signal_of(end: SystemExit) -> int | None:
    """The signal that ended a command; None where it ended by itself."""
    asked = getattr(end.__context__, "__cause__", None)
    if not isinstance(asked, KeyboardInterrupt):
        return None
    return int(asked.args[0]) if asked.args else int(signal.SIGINT)
