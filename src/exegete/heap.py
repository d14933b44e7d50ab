"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


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
