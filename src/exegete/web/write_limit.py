"""Too much at once is told, never waited for on the threads that serve pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")
MAX_WRITERS, WRITE_TIMEOUT = 4, 20.0
"""Threads that write answers at a time; seconds that an answer waits for one of them."""
_writers = RunVar[CapacityLimiter]("exegete_writers")


class BusyError(Exception):
    """Not now: the same request succeeds later."""


async def run_write(function: Callable[[], T]) -> T:
    """The result of a function that writes. It runs on a thread of its own kind; whoever waits for one holds none.

    Raises:
        BusyError: no such thread got free.
    """
    limiter = _writers.get(None)
    if limiter is None:
        limiter = CapacityLimiter(MAX_WRITERS)
        _writers.set(limiter)
    waiting = object()
    try:
        with fail_after(WRITE_TIMEOUT):
            await limiter.acquire_on_behalf_of(waiting)
    except TimeoutError:
        raise BusyError("the answers of others are being saved") from None
    try:
        return await to_thread.run_sync(function, limiter=CapacityLimiter(1))
    finally:
        limiter.release_on_behalf_of(waiting)
