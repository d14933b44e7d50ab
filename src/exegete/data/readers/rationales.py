"""The forms in which a table's column marks a part of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from exegete.data.alignment import split_words
from exegete.data.readers.base import require_spans
from exegete.data.spans import merge_marked_words
from exegete.errors import ExegeteError

FORMS = 'characters as [[start, end], …], words as ["a", "b"], or a 0 or 1 for each word as [0, 1, …]'


def read_rationale(value: Any, text: str, where: str) -> list[list[int]]:
    """Return the marked characters of a text as a list of [start, end].

    Args:
        value: a list of [start, end]; a list of words or phrases of the text, each marked wherever it occurs as whole
            words; or a 0 or 1 for each word of the text, where neighbouring marked words become one span.
        text: the text.
        where: the place of the row, for errors.

    Raises:
        ExegeteError: another form, spans outside the text, words that the text lacks, or a mask of another length.
    """
    if not isinstance(value, list | tuple):
        raise ExegeteError(f"{where}: expected a rationale as {FORMS}, got {value!r:.80}")
    if value and all(isinstance(part, str) for part in value):
        return _find_phrases(value, text, where)
    if value and all(isinstance(part, int | float) for part in value):
        return _read_mask(value, text, where)
    if all(isinstance(part, list | tuple) for part in value):
        return require_spans(value, text, where)
    raise ExegeteError(f"{where}: expected a rationale as {FORMS}, got {value!r:.80}")


def _find_phrases(phrases: Sequence[str], text: str, where: str) -> list[list[int]]:
    is_marked = [False] * len(text)
    for phrase in phrases:
        # A mark of a short word must not reach into longer ones: "art" is no part of "party".
        pattern = re.compile(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)" if phrase.strip() else r"(?!)")
        places = [match.span() for match in pattern.finditer(text)]
        if not places:
            raise ExegeteError(f"{where}: the rationale's {phrase!r:.60} does not occur in the text as whole words")
        for start, end in places:
            is_marked[start:end] = [True] * (end - start)
    characters = [(place, place + 1) for place in range(len(text))]
    return merge_marked_words(characters, is_marked)


def _read_mask(mask: Sequence[Any], text: str, where: str) -> list[list[int]]:
    words = split_words(text)
    if len(mask) != len(words) or any(mark not in (0, 1) for mark in mask):
        raise ExegeteError(
            f"{where}: expected a 0 or 1 for each of the {len(words)} words between white space, got {len(mask)} "
            f"numbers: {list(mask)!r:.60}; other units can be marked by their characters, as [[start, end], …]"
        )
    return merge_marked_words([(word.start, word.end) for word in words], [bool(mark) for mark in mask])
