"""A bounded queue for work with models, on one thread, with a deadline; work without a client is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Event, Timer
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from expound.serve.busy import BusyError
from expound.serve.explore.progress import StoppedError

T = TypeVar("T")
Work = Callable[[Event], T]
"""Work that must stop when the event is set."""
TOO_LATE = "the explanations of others take too long"
POLL_SECONDS = 0.1
"""Time between two checks whether the client is still connected."""


class WorkQueue:
    """A queue of at most `size` tasks; a task may wait for `seconds`, and then run for `seconds`."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self._free = BoundedSemaphore(size)
        # One thread: hooks and gradients are state of the model, and two passes at a time would need twice the memory.
        self._thread, self._stop_events = ThreadPoolExecutor(1, "expound-models"), set[Event]()

    def submit(self, work: Work[T]) -> tuple[Future[T], Event]:
        """Return the future of the work, and the event that stops it before it starts or at its next forward pass.

        Raises:
            BusyError: the queue is full.
        """
        # Refused at once instead of waiting: the queue of the executor itself has no bound.
        if not self._free.acquire(blocking=False):
            raise BusyError(f"{self.size} explanations are waiting")
        stop = Event()
        outcome = self._thread.submit(self._run, work, stop, time.monotonic() + self.seconds)
        self._stop_events.add(stop)
        outcome.add_done_callback(lambda _: self._release(stop))
        return outcome, stop

    def _release(self, stop: Event) -> None:
        self._stop_events.discard(stop)
        self._free.release()

    def _run(self, work: Work[T], stop: Event, latest_start: float) -> T:
        if stop.is_set():
            raise StoppedError
        # `run` refuses work that waits too long before this; streams do not watch the time.
        if time.monotonic() > latest_start:
            raise BusyError(TOO_LATE)
        is_late = Event()

        def expire() -> None:
            is_late.set()
            stop.set()

        # The time starts here and not in `submit`: waiting in the queue has a limit of its own.
        timer = Timer(self.seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            return work(stop)
        except StoppedError:
            # `stop` has several causes; only an expired timer is worth an error message.
            if is_late.is_set():
                raise BusyError(f"it takes more than {self.seconds:g} seconds") from None
            raise
        finally:
            timer.cancel()

    async def run(self, request: Request, work: Work[T]) -> T:
        """Return the result of work for a request.

        Raises:
            BusyError: the queue is full, or the time is up.
            ClientDisconnect: the client has left; the work is stopped.
        """
        outcome, stop = self.submit(work)
        future = asyncio.wrap_future(outcome)
        # asyncio logs exceptions that nobody retrieves, as happens when this method returns before the work ends.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        deadline = asyncio.get_running_loop().time() + self.seconds
        try:
            while not (await asyncio.wait([future], timeout=POLL_SECONDS))[0]:
                if await request.is_disconnected():
                    raise ClientDisconnect
                if not outcome.running() and asyncio.get_running_loop().time() > deadline:
                    raise BusyError(TOO_LATE)
            return future.result()
        except StoppedError:
            raise BusyError("the work was stopped") from None
        finally:
            stop.set()
            outcome.cancel()

    def close(self) -> None:
        """Stop the running work, cancel the waiting work and accept no more."""
        # A copy: `_release` removes events from the set on another thread.
        for stop in list(self._stop_events):
            stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
