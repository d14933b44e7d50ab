"""Character spans [start, end) of words in a text, and rationales made of marked words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

Span = tuple[int, int]

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
