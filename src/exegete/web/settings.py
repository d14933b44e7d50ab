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

    text_length: int = 20_000
    form_bytes: int = 1 << 20
    upload_bytes: int = 16 << 20
    form_fields: int = 20_000
    picture_pixels: int = 40_000_000
    picture_side: int = 1024
    methods: int = 48
    file_examples: int = 20_000
    queue_size: int = 64
    work_seconds: float = 120.0


UPLOAD_PATHS = frozenset({"/picture", "/studies/import"})
"""The addresses to which files go."""
MAX_DIGITS = 18
"""Digits of a number that is read: more have no meaning anywhere here, and thousands cannot be read at all."""
MAX_HEADER_BYTES = 256 << 10
"""Bytes that a request's first line and headers may have: a text travels in a permalink."""
