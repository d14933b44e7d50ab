"""A completions endpoint: a limited number of requests at a time, each repeated until it is answered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Event
from typing import Any, TypeVar

from expound.errors import ExpoundError, shorten

T = TypeVar("T")
ATTEMPTS = 8
"""Times that a request is sent before its failure is raised."""
FIRST_WAIT = 0.5
"""Seconds before a request is sent again to a server that is busy or cannot be reached; doubled every time."""
LONGEST_WAIT = 600.0
"""Seconds that a server may ask to wait (`Retry-After`)."""
BUSY = (408, 425, 429, 500, 502, 503, 504, 529)
"""Statuses that another attempt may change."""
KEY_VARIABLE = "EXPOUND_API_KEY"
"""The environment variable with the bearer token of a server that asks for one."""


class RequestRefusedError(ExpoundError):
    """The server does not do what a request asks for."""


class WrongAnswerError(ExpoundError):
    """The server answers something else than it was asked for."""


class ServerBusyError(ExpoundError):
    """The server cannot be reached or has no time; it asks to wait for `wait` seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class CompletionsServer:
    """The model of a server with OpenAI's protocol, asked at `URL/completions`.

    Busy servers, broken connections, timeouts and answers that are incomplete are asked again, after longer and longer
    waits. Objects may be shared by threads.

    Args:
        url: the address up to the version, as http://127.0.0.1:8000/v1.
        model: the model's name there.
        concurrency: the most requests at a time.
        timeout: seconds to wait for an answer.

    Raises:
        ExpoundError: the package httpx is missing.
    """

    form: Mapping[str, Any] | None = None
    """The options by which the server returns log-probabilities of a prompt, once they are known."""

    def __init__(self, url: str, model: str, concurrency: int = 8, timeout: float = 120.0) -> None:
        try:
            import httpx  # noqa: PLC0415  # an extra
        except ModuleNotFoundError as error:
            raise ExpoundError("models behind a server need the extra remote: pip install 'expound[remote]'") from error
        self.url, self.model, self.concurrency = url.rstrip("/"), model, concurrency
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=concurrency)
        self._client = httpx.Client(headers=headers, timeout=timeout, limits=limits)
        self._errors, self._connect_error = httpx.RequestError, httpx.ConnectError
        self._was_reached = False

    def ask_all(self, payloads: Sequence[Mapping[str, Any]], read: Callable[[int, Any], Any]) -> None:
        """Send requests, a limited number at a time; `read` gets the number and the answer of each, in any order.

        After an error or an interruption no further request is sent, and the answers under way are still read.

        Args:
            payloads: the JSON objects to send, without the model's name.
            read: raises WrongAnswerError, or fails, for an answer that must be asked for again.

        Raises:
            ExpoundError: as `ask` raises.
        """
        stop = Event()

        def work(number: int) -> None:
            try:
                if not stop.is_set():
                    self.ask(payloads[number], partial(read, number), stop)
            except BaseException:
                stop.set()
                raise

        with ThreadPoolExecutor(self.concurrency) as pool:
            try:
                for future in as_completed([pool.submit(work, number) for number in range(len(payloads))]):
                    future.result()
            finally:
                # Also set by an interruption of this thread.
                stop.set()

    def ask(self, payload: Mapping[str, Any], read: Callable[[Any], T], stop: Event | None = None) -> T:
        """Return what `read` makes of the server's answer; see `ask_all`. `stop`: no further attempt once it is set.

        Raises:
            WrongAnswerError: no answer could be read, in all attempts.
            ServerBusyError: the server gave no answer, in all attempts.
            RequestRefusedError: the server does not take the request.
            ExpoundError: the server is not there, refuses the key, or has no such model.
        """
        stop, failure = stop or Event(), ExpoundError()
        for attempt in range(ATTEMPTS):
            try:
                return self._ask_once(payload, read)
            except WrongAnswerError as error:
                # Asked again at once: the server has time.
                failure = error
            except ServerBusyError as error:
                failure = error
                if error.wait > LONGEST_WAIT:
                    raise ServerBusyError(f"{error}, and asks to wait for {error.wait:.0f} seconds") from error
                if attempt + 1 < ATTEMPTS:
                    stop.wait(max(error.wait, FIRST_WAIT * 2**attempt))
            if stop.is_set():
                break
        raise type(failure)(f"{failure} ({attempt + 1} attempts)") from failure

    def _ask_once(self, payload: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        try:
            response = self._client.post(f"{self.url}/completions", json={"model": self.model, **payload})
        except self._errors as error:
            reason = f"{self.url} gives no whole answer ({type(error).__name__}: {shorten(error, 120)})"
            # A server that has never answered is not there, and waiting would not help.
            if isinstance(error, self._connect_error) and not self._was_reached:
                raise ExpoundError(f"{reason}: is the server running?") from error
            raise ServerBusyError(reason) from error
        self._was_reached = True
        if not response.is_success:
            status = response.status_code
            reason = f"{self.url} answers with status {status} ({shorten(response.text, 200)})"
            if status in BUSY:
                raise ServerBusyError(reason, read_retry_after(response.headers.get("Retry-After", "")))
            if status in (401, 403):
                raise ExpoundError(f"{reason}: give the server's key in the environment variable {KEY_VARIABLE}")
            if status == 404:
                raise ExpoundError(f"{reason}: expected a completions endpoint with the model {self.model!r}")
            raise RequestRefusedError(reason)
        try:
            return read(response.json())
        except WrongAnswerError as error:
            raise WrongAnswerError(f"{self.url} answers about something else: {error}") from error
        # Anything can be missing in a JSON, or have another type.
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise WrongAnswerError(f"{self.url} gives no whole completion ({shorten(repr(error), 120)})") from error


def read_retry_after(value: str) -> float:
    """Return the seconds that a `Retry-After` header asks to wait: a number, or a date; 0 for anything else."""
    if value.isdecimal():
        return float(value)
    with suppress(ValueError, TypeError):
        return (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    return 0.0
