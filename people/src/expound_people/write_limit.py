"""A limit on concurrent writes, so that writers that wait for the database do not block the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar

from expound.serve.settings import BusyError

T = TypeVar("T")
MAX_WRITERS, WRITE_TIMEOUT = 4, 20.0
"""Number of threads that write answers; seconds that an answer waits for one of them."""
# A limiter belongs to the event loop in which it is made; tests run several loops in one process.
_limiter = RunVar[CapacityLimiter]("expound_writers")


async def run_write(function: Callable[[], T]) -> T:
    """Return the result of a function that writes to the database, run on one of at most `MAX_WRITERS` threads.

    Raises:
        BusyError: no thread became free within `WRITE_TIMEOUT` seconds.
    """
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = CapacityLimiter(MAX_WRITERS)
        _limiter.set(limiter)
    # The wait happens in the event loop. On a thread, waiting writers could take all threads that serve pages. Only the
    # wait can time out: a function that runs is not cancelled.
    try:
        with fail_after(WRITE_TIMEOUT):
            return await to_thread.run_sync(function, limiter=limiter)
    except TimeoutError:
        raise BusyError("the answers of others are being saved") from None
