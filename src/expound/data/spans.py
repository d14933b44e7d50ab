"""Parts of a text: the names of their sizes, their characters, tags of words, and rationales in all forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

from expound.data.alignment import split_words
from expound.errors import ExpoundError

UnitName = Literal["word", "token", "sentence", "paragraph", "source", "message", "tool_result", "thought"]
CONVERSATION_UNITS = ("message", "tool_result", "thought")
"""Units of a conversation: each of its texts (messages, thoughts, tool calls, results), the results of tools alone, and
the sentences of the thoughts. Earlier turns count, too."""

Spans = Sequence[Sequence[int]]
"""Characters of an example's texts that are one unit each: (start, end), or (number of the text, start, end)."""


OUTSIDE, PREFIXES = "O", "BIESLUM"


def split_tag(tag: str) -> tuple[str, str]:
    """Return a tag's prefix, which can be empty, and its kind."""
    prefix, dash, kind = tag.partition("-")
    if dash and kind and prefix in tuple(PREFIXES):
        return prefix, kind
    return "", tag


Span = tuple[int, int]
FORMS = 'characters as [[start, end], …], words as ["a", "b"], or a 0 or 1 for each word as [0, 1, …]'
"""The forms in which a column marks a part of a text."""

_WORD = re.compile(r"\S+")


def find_words(text: str) -> list[Span]:
    """Return the spans of the words between white space, the "tokens" of most annotated corpora."""
    return [match.span() for match in _WORD.finditer(text)]


def locate_words(words: Sequence[str], text: str) -> list[Span] | None:
    """Return the span of each word of a tokenized copy in the raw text; None if more than white space differs."""
    # compared without white space, since tokenized copies differ from the raw text in it
    letters = [i for i, character in enumerate(text) if not character.isspace()]
    if "".join(words) != "".join(text[i] for i in letters) or not all(words):
        return None
    bounds = pairwise(accumulate(map(len, words), initial=0))
    return [(letters[start], letters[end - 1] + 1) for start, end in bounds]


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Return the words joined by single spaces, and the span of each word."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


def vote_on_words(spans: Sequence[Span], people: Sequence[Sequence[bool]], share: float) -> list[list[int]] | None:
    """Return the rationale of the words that at least this share of the annotators marked; None without annotators."""
    if not people:
        return None
    votes = map(sum, zip(*people, strict=True))
    return merge_marked_words(spans, [count >= max(1.0, share * len(people)) for count in votes])


def merge_marked_words(spans: Sequence[Span], marks: Sequence[bool]) -> list[list[int]]:
    """Return the rationale of marked words; neighboring marked words become one span."""
    rationale, was_marked = list[list[int]](), False
    for (start, end), is_marked in zip(spans, marks, strict=True):
        if is_marked and was_marked:
            rationale[-1][1] = end
        elif is_marked:
            rationale.append([start, end])
        was_marked = is_marked
    return rationale


def read_rationale(value: Any, text: str, where: str) -> list[list[int]]:
    """Return the marked characters of a text as a list of [start, end].

    Args:
        value: a list of [start, end]; one or a list of words or phrases of the text, each marked wherever it occurs as
            whole words; or a 0 or 1 for each word of the text, where neighboring marked words become one span.
        text: the text.
        where: the place of the row, for errors.

    Raises:
        ExpoundError: another form, spans outside the text, words that the text lacks, or a mask of another length.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ExpoundError(f"{where}: expected a rationale as {FORMS}, got {value!r:.80}")
    kinds = set(map(type, value))
    if kinds == {str}:
        return _find_phrases(value, text, where)
    if kinds and kinds <= {int, float, bool}:
        return _read_mask(value, text, where)
    if kinds <= {list, tuple}:
        return require_spans(value, text, where)
    raise ExpoundError(f"{where}: expected a rationale as {FORMS}, got {value!r:.80}")


def _find_phrases(phrases: Sequence[str], text: str, where: str) -> list[list[int]]:
    is_marked = [False] * len(text)
    for phrase in phrases:
        # A mark of a short word must not reach into longer ones: "art" is no part of "party".
        places = list(re.finditer(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", text))
        if not places or not phrase.strip():
            raise ExpoundError(
                f"{where}: the rationale's {phrase!r:.60} does not occur in the text as whole words; expected {FORMS}"
            )
        for place in places:
            is_marked[slice(*place.span())] = [True] * len(place[0])
    characters = list(pairwise(range(len(text) + 1)))
    return merge_marked_words(characters, is_marked)


def _read_mask(mask: Sequence[Any], text: str, where: str) -> list[list[int]]:
    words = split_words(text)
    if len(mask) != len(words) or not {0, 1}.issuperset(mask):
        raise ExpoundError(
            f"{where}: expected a 0 or 1 for each of the {len(words)} words between white space, got {len(mask)} "
            f"numbers: {list(mask)!r:.60}; other units can be marked by their characters, as [[start, end], …]"
        )
    return merge_marked_words([(word.start, word.end) for word in words], mask)


def require_spans(value: Any, text: str, where: str) -> list[list[int]]:
    """Return the value as a list of [start, end] inside the text. Raises ExpoundError otherwise."""
    if not isinstance(value, list | tuple) or not all(_is_span(span, len(text)) for span in value):
        raise ExpoundError(f"{where}: expected a list of [start, end] within {len(text)} characters, got {value!r}")
    return list(map(list, value))


def _is_span(span: Any, length: int) -> bool:
    # `type`, since bool is a subclass of int, and JSON has both
    if not isinstance(span, list | tuple) or list(map(type, span)) != [int, int]:
        return False
    start, end = span
    return bool(0 <= start < end <= length)
