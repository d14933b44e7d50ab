"""Names of splits, and how one file without any becomes train, dev and test."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from exegete.errors import unknown

ALIASES = {"validation": "dev", "val": "dev", "valid": "dev"}
DIVIDED = ("train", "dev", "test", "all")
_SHARES = (("train", 0.8), ("dev", 0.9), ("test", 1.0))


def normalise_split_name(split: str) -> str:
    """`dev` for validation, val and valid; every other name as it is."""
    return ALIASES.get(split, split)


def find_split(split: str, there: Iterable[str]) -> str:
    """The name under which a split is there.

    Raises:
        ExegeteError: it isn't; the message names those that are.
    """
    names = {normalise_split_name(name): name for name in there}
    if normalise_split_name(split) not in names:
        raise unknown("split", split, names)
    return names[normalise_split_name(split)]


def assign_split(key: str, seed: int) -> str:
    """The part of an undivided file that a row belongs to: train (80 %), dev (10 %) or test (10 %).

    It depends on the key (the row's text) and the seed alone: equal texts stay together, and rows that come or go move
    no other row.
    """
    return next(name for name, end in _SHARES if hash_to_unit_interval(key, seed) < end)


def hash_to_unit_interval(key: str, seed: int) -> float:
    """A number from 0 to below 1 that depends on a key and the seed alone."""
    return int.from_bytes(blake2b(f"{seed}\0{key}".encode(), digest_size=8).digest()) / 2**64


def is_in_split(key: str, split: str, seed: int) -> bool:
    """Whether a row of an undivided file belongs to a split; to `all` every row does."""
    return split == "all" or assign_split(key, seed) == split
