"""A limit on wrong tokens per client address, so that tokens cannot be tried by the thousand."""

from __future__ import annotations

import time

from expound.serve.recent import RecentItems

MAX_ADDRESSES = 10_000


class WrongTokens:
    """Counts the wrong tokens of each address; after too many, the address has to wait after each further one.

    Args:
        allowed: wrong tokens before an address has to wait.
        seconds: seconds to wait after each further one.
    """

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
