"""Names of methods as pages show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def make_display_names(specs: Iterable[str]) -> dict[str, str]:
    """Return a name for each spec.

    The path in a learned method's spec is cut to the fewest last parts that distinguish it from the other specs.
    """
    suffixes = {spec: _list_suffixes(spec) for spec in specs}
    count = Counter[str]()
    for candidates in suffixes.values():
        count.update(candidates)
    names = {}
    for spec, candidates in suffixes.items():
        unique = [name for name in candidates if count[name] == 1]
        names[spec] = unique[0] if unique else candidates[-1]
    return names


def _list_suffixes(spec: str) -> list[str]:
    """Return the spec with one, two, … of the last parts of its path; the last element is the whole spec."""
    name, colon, path = spec.rstrip("/").partition(":")
    parts = path.split("/")
    return [f"{name}{colon}{'/'.join(parts[-size:])}" for size in range(1, len(parts) + 1)]
