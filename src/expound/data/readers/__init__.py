"""Readers of data formats. A new reader is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.data.readers.base import Reader, Table
    from expound.data.readers.registry import READERS
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["READERS", "Reader", "Table"]
