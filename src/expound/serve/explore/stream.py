"""Server-sent events about work in the queue; the work stops when the client leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from threading import Event
from typing import Any

from expound.errors import ExpoundError
from expound.serve.busy import BusyError
from expound.serve.explore.progress import ShareCallback, StoppedError
from expound.serve.explore.queue import WorkQueue

logger = logging.getLogger(__name__)
MAX_PROGRESS_EVENTS = 50
SendEvent = Callable[[str, Any], None]
"""Sends an event: its name and its data, which must be serialisable as JSON."""
SendLine = Callable[[str], None]
"""Sends text of an event stream."""


def stream_events(work: WorkQueue, run: Callable[[SendEvent, Event], None]) -> AsyncIterator[str]:
    """Submit `run` to the queue and return the events that it sends, followed by the event `end`.

    Args:
        work: The queue.
        run: The work, called with a function that sends an event and with an event that is set to stop it.

    Raises:
        BusyError: the queue is full. It is raised by the call, so that the response is 503 and not a broken stream.
    """

    def run_with_events(send: SendLine, stop: Event) -> None:
        run(lambda name, data: send(f"event: {name}\ndata: {json.dumps(data)}\n\n"), stop)

    return _end_events(stream_lines(work, run_with_events))


async def _end_events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    # The page's script tells the user which results are missing at the end, and the problem.
    end = {}
    try:
        async for line in lines:
            yield line
    except BusyError as error:
        end = {"problem": f"The server is busy: {error}."}
    except ExpoundError as error:
        end = {"problem": str(error)}
    except Exception:
        # The message can hold texts or paths, so that only the server's log gets it.
        logger.exception("an explanation failed")
        end = {"problem": "Something went wrong in the server; its log has the details."}
    yield f"event: end\ndata: {json.dumps(end)}\n\n"


def stream_lines(work: WorkQueue, run: Callable[[SendLine, Event], None]) -> AsyncIterator[str]:
    """Submit `run` to the queue and return the lines that it sends; at their end, its exception is raised.

    Args:
        work: The queue.
        run: The work, called with a function that sends lines and with an event that is set to stop it.

    Raises:
        BusyError: the queue is full; raised by the call. The iterator raises it when the work's time is up.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def send(line: str | None) -> None:
        # The loop is closed when the server has stopped; the work may still send its last line.
        with suppress(RuntimeError):
            # asyncio's queues are not thread-safe, and this runs on the thread of the models.
            loop.call_soon_threadsafe(queue.put_nowait, line)

    outcome, stop = work.submit(lambda stop: run(send, stop))
    outcome.add_done_callback(lambda _: send(None))
    return _read_lines(queue, outcome, stop)


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


async def _read_lines(queue: asyncio.Queue[str | None], outcome: Future[None], stop: Event) -> AsyncIterator[str]:
    try:
        while (line := await queue.get()) is not None:
            yield line
        try:
            outcome.result()
        except (StoppedError, CancelledError):
            raise BusyError("the work was stopped") from None
    finally:
        # Starlette closes this generator when the client disconnects.
        stop.set()
        outcome.cancel()
