"""The sizes of the parts of a text that are scored, removed or compared."""

from __future__ import annotations

from typing import Literal

Granularity = Literal["word", "token", "sentence", "paragraph", "source"]
