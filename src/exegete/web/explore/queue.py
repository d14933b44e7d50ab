"""Work with models on one thread: bounded, with a deadline, and given up when nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Event, Timer
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from exegete.web.explore.progress import StoppedError
from exegete.web.write_limit import BusyError

T = TypeVar("T")
Work = Callable[[Event], T]
"""Work that has to stop when the event is set."""
GLANCE = 0.1
"""Seconds between two looks at whether the client is still there."""


class WorkQueue:
    """A queue of `size` pieces of work; each may wait and then work for so many `seconds`."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self._room = BoundedSemaphore(size)
        self._thread, self._stops = ThreadPoolExecutor(1, "exegete-models"), set[Event]()

    def submit(self, work: Work[T]) -> tuple[Future[T], Event]:
        """The work's outcome, and the event that ends it: in the queue, or at its next pass through a model.

        Raises:
            BusyError: the queue is full.
        """
        if not self._room.acquire(blocking=False):
            raise BusyError(f"{self.size} explanations are waiting")
        stop = Event()
        outcome = self._thread.submit(self._run, work, stop)
        self._stops.add(stop)
        outcome.add_done_callback(lambda _: self._done(stop))
        return outcome, stop

    def _done(self, stop: Event) -> None:
        self._stops.discard(stop)
        self._room.release()

    def _run(self, work: Work[T], stop: Event) -> T:
        if stop.is_set():
            raise StoppedError
        late = Event()

        def end() -> None:
            late.set()
            stop.set()

        timer = Timer(self.seconds, end)
        timer.daemon = True
        timer.start()
        try:
            return work(stop)
        except StoppedError:
            if late.is_set():
                raise BusyError(f"it takes more than {self.seconds:g} seconds") from None
            raise
        finally:
            timer.cancel()

    async def run(self, request: Request, work: Work[T]) -> T:
        """The result of the work for a request.

        Raises:
            BusyError: the queue is full, or the time is up.
            ClientDisconnect: the client has left; the work is given up.
        """
        outcome, stop = self.submit(work)
        waited = asyncio.wrap_future(outcome)
        waited.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may look at it
        end = asyncio.get_running_loop().time() + self.seconds
        try:
            while not (await asyncio.wait([waited], timeout=GLANCE))[0]:
                if await request.is_disconnected():
                    raise ClientDisconnect
                if not outcome.running() and asyncio.get_running_loop().time() > end:
                    raise BusyError("the explanations of others take long")
            return waited.result()
        except StoppedError:
            raise BusyError("the work was given up") from None
        finally:
            stop.set()
            outcome.cancel()

    def close(self) -> None:
        """Takes no more work, and gives up what waits and what is done."""
        for stop in list(self._stops):
            stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
