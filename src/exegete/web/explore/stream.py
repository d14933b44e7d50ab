"""Server-sent events about work in the queue; the work stops when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from typing import Any

from exegete.web.explore.progress import ShareCallback
from exegete.web.explore.queue import WorkQueue

MAX_PROGRESS_EVENTS = 50
SendEvent = Callable[[str, Any], None]
"""Sends an event: its name and its data, which must be serialisable as JSON."""


def stream_events(work: WorkQueue, run: Callable[[SendEvent, Event], None]) -> AsyncIterator[str]:
    """Submit `run` to the queue and return the events that it sends, followed by the event `end`.

    Args:
        work: The queue.
        run: The work, called with a function that sends an event and with an event that is set to stop it.

    Raises:
        BusyError: the queue is full. It is raised by the call, so that the response is 503 and not a broken stream.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str]()

    def send(name: str, data: Any) -> None:
        # The loop is closed when the server has stopped; the work may still send its last event.
        with suppress(RuntimeError):
            # asyncio's queues are not thread-safe, and this runs on the thread of the models.
            loop.call_soon_threadsafe(queue.put_nowait, f"event: {name}\ndata: {json.dumps(data)}\n\n")

    outcome, stop = work.submit(lambda stop: run(send, stop))
    outcome.add_done_callback(lambda _: send("end", {}))
    return _read_events(queue, outcome, stop)


def throttle_progress(send: SendEvent, **data: Any) -> ShareCallback:
    """Return a function that sends the share of work done as `progress`, in at most `MAX_PROGRESS_EVENTS` events."""
    last = -1

    def report(share: float) -> None:
        nonlocal last
        # Methods can need thousands of passes, and the estimate of their number can be too low.
        step = min(MAX_PROGRESS_EVENTS, int(MAX_PROGRESS_EVENTS * share))
        if step > last:
            last = step
            send("progress", data | {"share": step / MAX_PROGRESS_EVENTS})

    return report


async def _read_events(queue: asyncio.Queue[str], outcome: Future[None], stop: Event) -> AsyncIterator[str]:
    try:
        event = ""
        while not event.startswith("event: end"):
            event = await queue.get()
            yield event
    finally:
        # Starlette closes this generator when the client disconnects.
        stop.set()
        outcome.cancel()
