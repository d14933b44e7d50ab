"""A limit on wrong tokens per client address, so that tokens cannot be tried by the thousand."""

from __future__ import annotations

import time
from collections import OrderedDict
from threading import Lock

MAX_ADDRESSES = 10_000


class WrongTokens:
    """Counts the wrong tokens of each address; after too many, the address has to wait after each further one.

    Args:
        allowed: wrong tokens before an address has to wait.
        seconds: seconds to wait after each further one.
    """

    def __init__(self, allowed: int, seconds: float) -> None:
        self.allowed, self.seconds = allowed, seconds
        self._lock = Lock()
        # The count and the time of the latest one; the address that was wrong longest ago comes first.
        self._latest: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def has_to_wait(self, address: str) -> bool:
        """Return whether a token from this address is not looked at now."""
        with self._lock:
            count, latest = self._latest.get(address, (0, 0.0))
            return count >= self.allowed and time.monotonic() < latest + self.seconds

    def add(self, address: str) -> None:
        """Count a wrong token."""
        with self._lock:
            count, _ = self._latest.pop(address, (0, 0.0))
            self._latest[address] = count + 1, time.monotonic()
            if len(self._latest) > MAX_ADDRESSES:
                self._latest.popitem(last=False)

    def forget(self, address: str) -> None:
        """Forget the wrong tokens of an address that has sent a right one."""
        with self._lock:
            self._latest.pop(address, None)
