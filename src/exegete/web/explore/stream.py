"""Methods' answers as server-sent events, as they come; who leaves stops the work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from typing import Any

from exegete.web.explore.question import Question
from exegete.web.explore.service import Answered, Explorer

STEPS = 50
"""Events of progress a method sends at most."""
Put = Callable[[str, Any], None]


def events(explorer: Explorer, asked: Question, drawn: Callable[[Answered], str]) -> AsyncIterator[str]:
    """`progress` (method and share), `card` (method and HTML, from `drawn`), at last `end`.

    Raises:
        BusyError: at once, where too much is waiting.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str]()

    def put(kind: str, value: Any) -> None:
        with suppress(RuntimeError):  # the server has stopped
            loop.call_soon_threadsafe(queue.put_nowait, f"event: {kind}\ndata: {json.dumps(value)}\n\n")

    outcome, stop = explorer.work.put(lambda stop: _work(explorer, asked, drawn, put, stop))
    outcome.add_done_callback(lambda _: put("end", {}))
    return _told(queue, outcome, stop)


async def _told(queue: asyncio.Queue[str], outcome: Future[None], stop: Event) -> AsyncIterator[str]:
    try:
        event = ""
        while not event.startswith("event: end"):
            event = await queue.get()
            yield event
    finally:
        stop.set()
        outcome.cancel()


def _work(explorer: Explorer, asked: Question, drawn: Callable[[Answered], str], put: Put, stop: Event) -> None:
    for name in asked.method:
        answer = explorer.explain(asked, name, _reporter(explorer, asked, name, put), stop)
        put("card", {"method": name, "html": drawn(answer)})


def _reporter(explorer: Explorer, asked: Question, name: str, put: Put) -> Callable[[int], None]:
    total: float | None = None
    last = -1

    def report(seen: int) -> None:
        nonlocal total, last
        if total is None:
            total = explorer.total(asked, name)
        step = min(STEPS, int(STEPS * seen / total))
        if step > last:
            last = step
            put("progress", {"method": name, "share": step / STEPS})

    return report
