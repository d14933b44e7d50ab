"""Methods' answers as server-sent events, as they come; who leaves stops the work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Any

from exegete.web.explore.progress import StoppedError
from exegete.web.explore.question import Question
from exegete.web.explore.service import Answered, Explorer

STEPS = 50
"""Events of progress a method sends at most."""
Put = Callable[[str, Any], None]


async def events(explorer: Explorer, asked: Question, drawn: Callable[[Answered], str]) -> AsyncIterator[str]:
    """`progress` (method and share), `card` (method and HTML, from `drawn`), at last `end`."""
    loop, queue, stop = asyncio.get_running_loop(), asyncio.Queue[str](), Event()

    def put(kind: str, value: Any) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, f"event: {kind}\ndata: {json.dumps(value)}\n\n")

    work = loop.run_in_executor(None, _work, explorer, asked, drawn, put, stop)
    try:
        while True:
            event = await queue.get()
            yield event
            if event.startswith("event: end"):
                break
        await work
    finally:
        stop.set()


def _work(explorer: Explorer, asked: Question, drawn: Callable[[Answered], str], put: Put, stop: Event) -> None:
    try:
        for name in asked.method:
            answer = explorer.explain(asked, name, _reporter(explorer, asked, name, put), stop)
            put("card", {"method": name, "html": drawn(answer)})
    except StoppedError:
        return
    finally:
        put("end", {})


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
