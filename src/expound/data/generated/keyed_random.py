"""Random draws that are the same on every machine and with every version of Python and the libraries."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class KeyedRandom:
    """A random number generator whose draws depend on its key alone; different keys are independent.

    Values are hashes of the key and a counter, because generators of libraries may change between versions.
    """

    def __init__(self, *key: str | float) -> None:
        self._key = "\0".join(map(str, key))
        self._count = 0

    def random(self) -> float:
        """Return a number in [0, 1)."""
        self._count += 1
        digest = blake2b(f"{self._key}\0{self._count}".encode(), digest_size=6).digest()
        # 48 bits fit a float's 53-bit mantissa, so the quotient is exact and below 1
        return int.from_bytes(digest) / 2**48

    def randrange(self, end: int) -> int:
        """Return an integer in [0, end)."""
        return int(self.random() * end)

    def choice(self, choices: Sequence[T]) -> T:
        """Return one of the choices, all equally likely."""
        return choices[self.randrange(len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """Return `count` different choices in random order."""
        pool = list(choices)
        return [pool.pop(self.randrange(len(pool))) for _ in range(count)]
