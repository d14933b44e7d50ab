"""The sizes of the parts of a text, or of a conversation, that are scored, removed or compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

UnitName = Literal["word", "token", "sentence", "paragraph", "source", "message", "tool_result", "thought"]
CONVERSATION_UNITS = ("message", "tool_result", "thought")
"""Units of a conversation: each of its texts (messages, thoughts, tool calls, results), the results of tools alone, and
the sentences of the thoughts. Earlier turns count, too."""

Spans = Sequence[Sequence[int]]
"""Characters of an example's texts that are one unit each: (start, end), or (number of the text, start, end)."""
