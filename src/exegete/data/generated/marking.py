"""Writing texts with their evidence in brackets, such as `the plot was [not good]`."""

from __future__ import annotations

import re

_BRACKETS = re.compile(r"[\[\]]")


def unmark(text: str) -> tuple[str, list[list[int]]]:
    """The text without brackets, and the spans [start, end] that stood between them."""
    edges = [match.start() - i for i, match in enumerate(_BRACKETS.finditer(text))]
    return _BRACKETS.sub("", text), [list(span) for span in zip(edges[::2], edges[1::2], strict=True)]


def join_sentences(sentences: list[str]) -> str:
    """Sentences with a capital and a full stop each, one after the other; a bracket may come before the capital."""
    return " ".join(re.sub("[A-Za-z]", lambda letter: letter[0].upper(), s, count=1) + "." for s in sentences)


def count_words(sentences: list[str]) -> int:
    """Words, separated by white space."""
    return sum(len(sentence.split()) for sentence in sentences)
