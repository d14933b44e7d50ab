"""Chance that falls the same on every machine, in every process and with every version of every library."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class KeyedRandom:
    """Draws decided by the key alone; two keys have nothing to do with each other."""

    def __init__(self, *key: str | float) -> None:
        self._key = "\0".join(map(str, key))
        self._drawn = 0

    def random(self) -> float:
        """A number in [0, 1)."""
        self._drawn += 1
        digest = blake2b(f"{self._key}\0{self._drawn}".encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48

    def randrange(self, end: int) -> int:
        """A whole number in [0, end)."""
        return int(self.random() * end)

    def choice(self, choices: Sequence[T]) -> T:
        """One of the choices, all equally likely."""
        return choices[self.randrange(len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """So many different ones, in random order."""
        pool = list(choices)
        return [pool.pop(self.randrange(len(pool))) for _ in range(count)]
