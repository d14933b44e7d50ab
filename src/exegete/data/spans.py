"""Character spans [start, end): where words stand in a text, and the rationale that marked words make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

Span = tuple[int, int]

_WORD = re.compile(r"\S+")


def find_words(text: str) -> list[Span]:
    """The spans of the runs without white space, the "tokens" of most annotated corpora."""
    return [match.span() for match in _WORD.finditer(text)]


def locate_words(words: Sequence[str], text: str) -> list[Span] | None:
    """Where each word of a tokenised copy stands in the raw text; None when they differ in more than white space."""
    letters = [i for i, character in enumerate(text) if not character.isspace()]
    if "".join(words) != "".join(text[i] for i in letters) or not all(words):
        return None
    bounds = pairwise(accumulate((len(word) for word in words), initial=0))
    return [(letters[start], letters[end - 1] + 1) for start, end in bounds]


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Words with single spaces between them, and where each of them stands."""
    ends = accumulate(len(word) + 1 for word in words)
    return " ".join(words), [(end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]


def vote_on_words(spans: Sequence[Span], people: Sequence[Sequence[bool]], share: float) -> list[list[int]] | None:
    """The rationale of the words that at least this share of the people marked; None where nobody looked."""
    if not people:
        return None
    return merge_marked_words(
        spans, [sum(votes) >= max(1.0, share * len(people)) for votes in zip(*people, strict=True)]
    )


def merge_marked_words(spans: Sequence[Span], marks: Sequence[bool]) -> list[list[int]]:
    """The rationale of marked words: neighbours that are both marked become one span."""
    runs = (list(run) for mark, run in groupby(zip(marks, spans, strict=True), key=lambda pair: pair[0]) if mark)
    return [[run[0][1][0], run[-1][1][1]] for run in runs]
