"""Texts with their evidence in brackets, such as `the plot was [not good]`."""

from __future__ import annotations

import re

_BRACKETS = re.compile(r"[\[\]]")


def unmark(text: str) -> tuple[str, list[list[int]]]:
    """Return the text without brackets, and the spans [start, end] between them."""
    # each bracket moves the characters after it one to the left
    edges = [match.start() - i for i, match in enumerate(_BRACKETS.finditer(text))]
    return _BRACKETS.sub("", text), [list(span) for span in zip(edges[::2], edges[1::2], strict=True)]


def join_sentences(sentences: list[str]) -> str:
    """Join sentences, each with a capital letter (which a bracket may precede) and a full stop."""
    return " ".join(re.sub("[A-Za-z]", lambda letter: letter[0].upper(), s, count=1) + "." for s in sentences)


def count_words(sentences: list[str]) -> int:
    """Return the number of words, separated by white space."""
    return sum(len(sentence.split()) for sentence in sentences)
