"""Bounds of a server: on requests, on wrong tokens, on time, and on what it keeps in memory."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True)
class Limits:
    """Bounds on what a request may contain; a request beyond them is refused.

    Attributes:
        text_length: Characters of all texts of a question together, or of one imported text.
        form_bytes: Bytes of a request's body.
        upload_bytes: Bytes of the body of a request that uploads a file.
        form_fields: Fields of a form.
        picture_pixels: Pixels of an uploaded picture.
        picture_side: Width and height, in pixels, to which pictures are scaled down.
        methods: Methods explained in one request.
        file_examples: Examples in an imported file.
        queue_size: Explanations that wait or run at a time, per queue.
        work_seconds: Seconds that an explanation may wait, and then run.
        wrong_tokens: Wrong tokens of one address before it has to wait.
        wrong_token_seconds: Seconds that the address waits after each further one.
    """

    text_length: int = 20_000
    form_bytes: int = 1 << 20
    upload_bytes: int = 16 << 20
    form_fields: int = 20_000
    picture_pixels: int = 40_000_000
    picture_side: int = 1024
    methods: int = 48
    file_examples: int = 20_000
    queue_size: int = 64
    work_seconds: float = 120.0
    wrong_tokens: int = 10
    wrong_token_seconds: float = 1.0


UPLOAD_PATHS = frozenset({"/picture"})
"""The library's own addresses that take files."""
# `int` raises ValueError for strings of more than 4,300 digits, and its time grows with the square of their number.
MAX_DIGITS = 18
"""Digits of a number in a request."""
# Questions travel in the address, so that a page can be linked: h11's default (16 KiB) is too small for them.
MAX_HEADER_BYTES = 256 << 10
"""Bytes of a request's first line and headers."""


class BusyError(Exception):
    """The server cannot process the request now; the client can repeat it later."""


K = TypeVar("K")
V = TypeVar("V")


class RecentItems(Generic[K, V]):
    """The last `size` values by key, for several threads; older values are dropped."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._items = OrderedDict[K, V]()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if it is not stored."""
        return self._items.get(key)

    def add(self, key: K, value: V) -> V:
        """Store a value as the newest one, drop the oldest beyond `size`, and return the value."""
        with self._lock:
            self._items[key] = value
            self._items.move_to_end(key)
            while len(self._items) > self.size:
                self._items.popitem(last=False)
        return value


MAX_ADDRESSES = 10_000


class WrongTokens:
    """Counts the wrong tokens of each address; after `allowed`, it has to wait `seconds` after each further one."""

    def __init__(self, allowed: int, seconds: float) -> None:
        self.allowed, self.seconds = allowed, seconds
        self._latest = RecentItems[str, tuple[int, float]](MAX_ADDRESSES)

    def has_to_wait(self, address: str) -> bool:
        """Return whether a token from this address is not looked at now."""
        count, latest = self._latest.get(address) or (0, 0.0)
        return count >= self.allowed and time.monotonic() < latest + self.seconds

    def add(self, address: str) -> None:
        """Count a wrong token."""
        count, _ = self._latest.get(address) or (0, 0.0)
        self._latest.add(address, (count + 1, time.monotonic()))

    def forget(self, address: str) -> None:
        """Forget the wrong tokens of an address that has sent a right one."""
        self._latest.add(address, (0, 0.0))


class TimeoutProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, which closes connections whose request arrives too slowly."""

    header_timeout, body_timeout = 10.0, 120.0
    """Seconds for the first line and headers of a request, and for its body."""

    _timer: asyncio.TimerHandle | None = None
    _is_reading_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._start_timer(self.header_timeout)

    def data_received(self, data: bytes) -> None:
        """Process received bytes and start, keep or stop the timer."""
        super().data_received(data)
        state = self.conn.their_state
        # A running timer is not restarted: one byte every few seconds would keep the connection open forever.
        if state is h11.IDLE and self._timer is None:
            self._start_timer(self.header_timeout)
        elif state is h11.SEND_BODY and not self._is_reading_body:
            self._start_timer(self.body_timeout)
            self._is_reading_body = True
        elif state not in (h11.IDLE, h11.SEND_BODY):
            # The request is complete. Explanations and event streams may take longer than the timeouts.
            self._cancel_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._cancel_timer()
        super().connection_lost(exc)

    def _start_timer(self, seconds: float) -> None:
        self._cancel_timer()
        # `close` would first flush the answer to a client that may not read it; `abort` frees the socket at once.
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _cancel_timer(self) -> None:
        self._is_reading_body = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
