"""Files with something wrong in them, for tests of whatever reads files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

STRANGE_VALUES: tuple[Any, ...] = (
    None,
    0,
    -1,
    0.5,
    10**9,
    "",
    " ",
    "x",
    "\x00",
    "../..",
    [],
    {},
    [None],
    [[0, 9]],
    {"x": 1},
)
"""Values that are put in the place of a value of JSON."""


def make_damaged_versions(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """So many damaged versions of a file, by turns: cut off, other bytes, lines lost or twice, other values of JSON."""
    drawn = random.Random(seed)  # noqa: S311  # no secret
    for number in range(count):
        yield (_truncate, _replace_bytes, _replace_lines, _replace_value)[number % 4](content, drawn)


def _truncate(content: bytes, drawn: random.Random) -> bytes:
    return content[: drawn.randrange(len(content) + 1)]


def _replace_bytes(content: bytes, drawn: random.Random) -> bytes:
    at = drawn.randrange(len(content) + 1)
    return content[:at] + drawn.choice((b"", b"\xff", b"\x00", b'"', b"\n", b"9" * 40)) + content[at + 1 :]


def _replace_lines(content: bytes, drawn: random.Random) -> bytes:
    lines = content.split(b"\n")
    at = drawn.randrange(len(lines))
    return b"\n".join((*lines[:at], *drawn.choice(([], [b""], [lines[at]] * 2)), *lines[at + 1 :]))


def _replace_value(content: bytes, drawn: random.Random) -> bytes:
    """The whole file or one of its lines with another value in a place; other bytes where neither is JSON."""
    lines = content.split(b"\n")
    for first, last in ((0, len(lines)), ((at := drawn.randrange(len(lines))), at + 1)):
        try:
            value = json.loads(b"\n".join(lines[first:last]))
        except ValueError:
            continue
        changed = json.dumps(_change_value(value, drawn), ensure_ascii=False).encode()
        return b"\n".join((*lines[:first], changed, *lines[last:]))
    return _replace_bytes(content, drawn)


def _change_value(value: Any, drawn: random.Random) -> Any:
    places = list(_list_places(value))
    if not places:
        return drawn.choice(STRANGE_VALUES)
    holder, key = drawn.choice(places)
    if drawn.random() < 0.2:
        del holder[key]
    else:
        holder[key] = drawn.choice(STRANGE_VALUES)
    return value


def _list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _list_places(value[key])
