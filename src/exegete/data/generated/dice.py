"""Chance that falls the same on every machine, in every process and with every version of every library."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Draws decided by the key alone; two keys have nothing to do with each other."""

    def __init__(self, *key: str | float) -> None:
        self._key = "\0".join(map(str, key))
        self._drawn = 0

    def chance(self) -> float:
        """A number in [0, 1)."""
        self._drawn += 1
        digest = blake2b(f"{self._key}\0{self._drawn}".encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48

    def below(self, end: int) -> int:
        """A whole number in [0, end)."""
        return int(self.chance() * end)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, all equally likely."""
        return choices[self.below(len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """So many different ones, in random order."""
        pool = list(choices)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]
