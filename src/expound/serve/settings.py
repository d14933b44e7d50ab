"""Bounds on requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what a request may contain; a request beyond them is refused.

    Attributes:
        text_length: Characters of all texts of a question together, or of one imported text.
        form_bytes: Bytes of a request's body.
        upload_bytes: Bytes of the body of a request that uploads a file.
        form_fields: Fields of a form.
        picture_pixels: Pixels of an uploaded picture.
        picture_side: Width and height, in pixels, to which pictures are scaled down.
        methods: Methods explained in one request.
        file_examples: Examples in an imported file.
        queue_size: Explanations that wait or run at a time, per queue.
        work_seconds: Seconds that an explanation may wait, and then run.
        wrong_tokens: Wrong tokens of one address before it has to wait.
        wrong_token_seconds: Seconds that the address waits after each further one.
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
    wrong_tokens: int = 10
    wrong_token_seconds: float = 1.0


UPLOAD_PATHS = frozenset({"/picture"})
"""The library's own addresses that take files."""
# `int` raises ValueError for strings of more than 4,300 digits, and its time grows with the square of their number.
MAX_DIGITS = 18
"""Digits of a number in a request."""
# Questions travel in the address, so that a page can be linked: h11's default (16 KiB) is too small for them.
MAX_HEADER_BYTES = 256 << 10
"""Bytes of a request's first line and headers."""
