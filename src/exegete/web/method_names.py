"""Methods by the names that pages show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def make_display_names(specs: Iterable[str]) -> dict[str, str]:
    """By spec, the name on pages: of a learned method's folder as few last parts as no other spec ends in."""
    ends = {spec: _ends(spec) for spec in specs}
    count = Counter(end for every in ends.values() for end in every)
    return {spec: next((end for end in every if count[end] == 1), every[-1]) for spec, every in ends.items()}


def _ends(spec: str) -> list[str]:
    """The spec with one, two, ... of its folder's last parts, at last all of it."""
    name, colon, path = spec.rstrip("/").partition(":")
    parts = path.split("/")
    return [f"{name}{colon}{'/'.join(parts[-size:])}" for size in range(1, len(parts) + 1)]
