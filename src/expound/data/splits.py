"""Names of splits, and the division of a file without splits into train, dev and test."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from expound.errors import unknown

ALIASES = {"validation": "dev", "val": "dev", "valid": "dev"}
DIVIDED = ("train", "dev", "test", "all")


def normalize_split_name(split: str) -> str:
    """Return `dev` for validation, val and valid, and every other name unchanged."""
    return ALIASES.get(split, split)


def find_split(split: str, available: Iterable[str]) -> str:
    """Return which of the available names is the split's, where aliases such as `val` and `dev` are the same.

    Raises:
        ExpoundError: the split is not available; the message lists the available ones.
    """
    names = {normalize_split_name(name): name for name in available}
    if normalize_split_name(split) not in names:
        raise unknown("split", split, names)
    return names[normalize_split_name(split)]


def assign_split(key: str, seed: int) -> str:
    """Return the split of a row of an undivided file: train (80 %), dev (10 %) or test (10 %).

    It depends on the key (the row's text) and the seed alone. Equal texts therefore share a split, and adding or
    removing rows moves no other row.
    """
    position = hash_to_unit_interval(key, seed)
    if position < 0.8:
        return "train"
    return "dev" if position < 0.9 else "test"


def hash_to_unit_interval(key: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on the key and the seed alone."""
    return int.from_bytes(blake2b(f"{seed}\0{key}".encode(), digest_size=8).digest()) / 2**64


def is_in_split(key: str, split: str, seed: int) -> bool:
    """Return whether a row of an undivided file is in a split; every row is in `all`."""
    return split == "all" or assign_split(key, seed) == split
