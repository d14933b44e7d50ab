"""The last results and inputs of a server, kept in memory."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

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
