"""The sizes of the parts of a text that are scored, removed or compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

UnitName = Literal["word", "token", "sentence", "paragraph", "source"]

Spans = Sequence[Sequence[int]]
"""Characters of an example's texts that are one unit each: (start, end), or (number of the text, start, end)."""
