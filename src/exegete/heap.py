"""Memory that was freed: kept for the next pass, and given back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

LARGEST = (32 << 20) - (1 << 16)
"""Bytes of the largest block from which glibc learns: it maps those from 32 MiB on whatever it saw."""


@cache
def keep_freed() -> None:
    """Has the C library keep up to 64 MiB of freed memory for what is asked next (glibc); once a process.

    It gives back what is free beyond twice the largest block that it mapped and saw freed, here one that is never
    written. Without it each layer's activations are given back and fetched again, page by page: a tenth of a pass.
    """
    bytes(LARGEST)


def give_back() -> None:
    """Gives freed memory back, where the C library would keep it (glibc): tensors of many sizes tear its heap."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no such handle on Windows
        return None
