"""Work with models on one thread: a bounded queue, its progress, and events about it for a client."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore, Event, Timer, get_ident
from typing import Any, TypeVar

import torch
from fastapi import Request
from starlette.requests import ClientDisconnect
from torch import Tensor, nn
from transformers import StoppingCriteria

from expound.errors import ExpoundError
from expound.serve.settings import BusyError

CountCallback = Callable[[int], None]
"""Receives the number of inputs that the model has processed so far."""
ShareCallback = Callable[[float], None]
"""Receives the share of the work that is done, from 0 to 1."""


class StoppedError(Exception):
    """The work was stopped: its client has left, its time is up, or the server stops."""


@contextmanager
def track_progress(model: nn.Module, report: CountCallback, stop: Event) -> Iterator[None]:
    """Call `report` before each forward pass of the model by this thread inside the block.

    Raises:
        StoppedError: `stop` was set; raised at the next forward pass. The model is restored.
    """
    n_inputs, thread = 0, get_ident()

    def before_forward(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal n_inputs
        if get_ident() != thread:
            return
        # A thread cannot be interrupted from outside; the forward pass is the one place that every method goes through.
        if stop.is_set():
            raise StoppedError
        report(n_inputs)
        candidates = [*args, named.get("input_ids"), named.get("inputs_embeds")]
        inputs: Any = next((value for value in candidates if value is not None), None)
        # A single token, as that of a baseline, has no dimension of inputs.
        is_single = inputs is None or (isinstance(inputs, Tensor) and not inputs.dim())
        n_inputs += 1 if is_single else len(inputs)

    hook = model.register_forward_pre_hook(before_forward, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


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


logger = logging.getLogger(__name__)
MAX_PROGRESS_EVENTS = 50
SendEvent = Callable[[str, Any], None]
"""Sends an event: its name and its data, which must be serialisable as JSON."""
SendLine = Callable[[str], None]
"""Sends text of an event stream."""


def stream_events(work: WorkQueue, run: Callable[[SendEvent, Event], None]) -> AsyncIterator[str]:
    """Submit `run` to the queue and return the events that it sends, followed by the event `end`.

    `run` is called with a function that sends an event, and with an event that is set to stop it.

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

    `run` is called with a function that sends lines, and with an event that is set to stop it.

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


SendText = Callable[[str], None]
"""Receives the next part of an answer while the model generates it."""


class TextFollower(StoppingCriteria):
    """Sends the text of an answer while its tokens are generated, and ends it at one of the texts `stops`."""

    def __init__(self, tokenizer: Any, send: SendText, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops, self.send = tokenizer, stops, send
        self.n_prompt, self.sent, self.is_stopped = -1, "", False

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Return whether the answer has ended [1], given the tokens [1, L] of the prompt and the answer until now."""
        if self.n_prompt < 0:
            self.n_prompt = input_ids.shape[1] - 1
        text = self._cut(self.decode(input_ids[0, self.n_prompt :].tolist()))
        if not self.is_stopped:
            # Not sent yet: what may be the beginning of a stop sequence, and the first bytes of a character.
            held = max(map(len, self.stops), default=1) - 1
            self._send_until(text[: max(0, len(text) - held)].rstrip("\ufffd"))
        return torch.full((len(input_ids),), self.is_stopped, device=input_ids.device)

    def finish(self, ids: Sequence[int]) -> str:
        """Send the rest of the answer, and return the whole of it.

        Raises:
            ExpoundError: later tokens have changed text that was sent.
        """
        text = self._cut(self.decode(ids))
        self._send_until(text)
        if self.sent != text:
            raise ExpoundError("the tokenizer changes text before a token that follows: ask without 'stream'")
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _cut(self, text: str) -> str:
        places = [text.find(stop) for stop in self.stops if stop in text]
        self.is_stopped = bool(places)
        return text[: min(places, default=len(text))]

    def _send_until(self, text: str) -> None:
        if len(text) > len(self.sent) and text.startswith(self.sent):
            self.send(text[len(self.sent) :])
            self.sent = text
