"""How much a request may bring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what comes from outside; beyond them a request is refused.

    `text`: characters of a text; `form` and `upload`: bytes of a request's body; `fields`: of a form; `pixels`: of a
    picture; `side`: to which a picture is scaled down; `methods`: explained at once; `examples`: of an imported file;
    `waiting`: pieces of work with models; `seconds`: that each may wait, and then take.
    """

    text: int = 20_000
    form: int = 1 << 20
    upload: int = 16 << 20
    fields: int = 20_000
    pixels: int = 40_000_000
    side: int = 1024
    methods: int = 48
    examples: int = 20_000
    waiting: int = 64
    seconds: float = 120.0


UPLOADS = frozenset({"/picture", "/studies/import"})
"""The addresses to which files go."""
DIGITS = 18
"""Digits of a number that is read: more have no meaning anywhere here, and thousands cannot be read at all."""
EVENTS = 256 << 10
"""Bytes that a request's first line and headers may have: a text travels in a permalink."""
