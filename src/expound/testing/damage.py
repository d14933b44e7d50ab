"""Damaged versions of files, for tests of readers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

STRANGE_VALUES: tuple[Any, ...] = (
    *(None, 0, -1, 0.5, 10**9, "", " ", "x", "\x00", "../.."),
    *([], {}, [None], [[0, 9]], {"x": 1}),
)
"""Values that replace a value of JSON."""


def make_damaged_versions(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield `count` damaged versions of a file, in turn truncated, with other bytes, lines, or values of JSON."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    damages = (_truncate, _replace_bytes, _replace_lines, _replace_value)
    for number in range(count):
        yield damages[number % 4](content, rng)


def _truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _replace_bytes(content: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(content) + 1)
    replacement = rng.choice((b"", b"\xff", b"\x00", b'"', b"\n", b"9" * 40))
    return content[:position] + replacement + content[position + 1 :]


def _replace_lines(content: bytes, rng: random.Random) -> bytes:
    """Delete, empty or repeat one line."""
    lines = content.split(b"\n")
    number = rng.randrange(len(lines))
    replacement = rng.choice(([], [b""], [lines[number]] * 2))
    return b"\n".join((*lines[:number], *replacement, *lines[number + 1 :]))


def _replace_value(content: bytes, rng: random.Random) -> bytes:
    """Change a value in the whole file, or else in one of its lines, if that is JSON; if neither is, change bytes."""
    lines = content.split(b"\n")
    number = rng.randrange(len(lines))
    for first, end in ((0, len(lines)), (number, number + 1)):
        try:
            value = json.loads(b"\n".join(lines[first:end]))
        except ValueError:
            continue
        changed = json.dumps(_change_value(value, rng), ensure_ascii=False).encode()
        return b"\n".join((*lines[:first], changed, *lines[end:]))
    return _replace_bytes(content, rng)


def _change_value(value: Any, rng: random.Random) -> Any:
    """Delete or replace one value inside lists and objects; a bare value is replaced."""
    places = list(_list_places(value))
    if not places:
        return rng.choice(STRANGE_VALUES)
    container, key = rng.choice(places)
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(STRANGE_VALUES)
    return value


def _list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container inside the value with each of its keys or indices."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _list_places(value[key])
