"""Timeouts for receiving a request.

Without them, clients that send a request slowly, or never, could occupy all of the server's connections.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


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
