"""Connections that send their request slowly, or never, are closed: they hold none of the server's places for long."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol with a time for each request: `head` seconds for its first lines, `body` for the rest."""

    head, body = 10.0, 120.0

    _deadline: asyncio.TimerHandle | None = None
    _reading_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time for the first request begins."""
        super().connection_made(transport)
        self._give(self.head)

    def data_received(self, data: bytes) -> None:
        """More of a request: its time goes on, the body's own begins with it, and none runs once all is there."""
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.IDLE and self._deadline is None:
            self._give(self.head)
        elif state is h11.SEND_BODY and not self._reading_body:
            self._give(self.body)
            self._reading_body = True
        elif state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._forget()
        super().connection_lost(exc)

    def _give(self, seconds: float) -> None:
        self._forget()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _forget(self) -> None:
        self._reading_body = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
