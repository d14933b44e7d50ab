"""What work tells while it goes on, as server-sent events; who leaves stops it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from typing import Any

from exegete.web.explore.queue import WorkQueue

STEPS = 50
"""Events of progress at most."""
Put = Callable[[str, Any], None]


def stream_events(work: WorkQueue, tell: Callable[[Put, Event], None]) -> AsyncIterator[str]:
    """What `tell` puts (kind, value) from the queue's thread, until it is done or its event is set; at last `end`.

    Raises:
        BusyError: at once, where too much is waiting.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str]()

    def put(kind: str, value: Any) -> None:
        with suppress(RuntimeError):  # the server has stopped
            loop.call_soon_threadsafe(queue.put_nowait, f"event: {kind}\ndata: {json.dumps(value)}\n\n")

    outcome, stop = work.submit(lambda stop: tell(put, stop))
    outcome.add_done_callback(lambda _: put("end", {}))
    return _told(queue, outcome, stop)


def throttle_progress(put: Put, **about: Any) -> Callable[[float], None]:
    """A function that tells how much is done, from 0 to 1, in at most so many `progress` events as are worth it."""
    last = -1

    def report(share: float) -> None:
        nonlocal last
        step = min(STEPS, int(STEPS * share))
        if step > last:
            last = step
            put("progress", about | {"share": step / STEPS})

    return report


async def _told(queue: asyncio.Queue[str], outcome: Future[None], stop: Event) -> AsyncIterator[str]:
    try:
        event = ""
        while not event.startswith("event: end"):
            event = await queue.get()
            yield event
    finally:
        stop.set()
        outcome.cancel()
