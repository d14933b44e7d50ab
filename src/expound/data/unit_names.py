"""The sizes of the parts of a text that are scored, removed or compared."""

from __future__ import annotations

from typing import Literal

UnitName = Literal["word", "token", "sentence", "paragraph", "source"]
