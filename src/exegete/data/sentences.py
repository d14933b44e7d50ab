"""Sentences and paragraphs of a text, found by punctuation and line breaks of any language."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

from exegete.data.alignment import Alignment, Word, trim_span

# a mark of Latin scripts needs white space after it (as in 3.14), one of CJK scripts does not
_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)|[。！？]+["'”’」』）]*|(?=\n)""")
_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
_ABBREVIATION = re.compile(r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|cf|Fig|al))\.$")


def find_sentence_ends(text: str) -> list[int]:
    """Return the character at which each sentence ends; the white space before a sentence belongs to it.

    A sentence ends at a line break, and at a full stop, question mark or exclamation mark before white space, unless a
    lower-case letter follows or the stop belongs to a common abbreviation. The last sentence ends with the text.
    """
    ends: list[int] = []
    for match in _END.finditer(text):
        end, start = match.end(), ends[-1] if ends else 0
        following = text[end:].lstrip()[:1]
        inside = match.group() and (following.islower() or _ABBREVIATION.search(text, start, end))
        if following and not inside and text[start:end].strip():
            ends.append(end)
    return [*ends, len(text)]


def split_sentences(text: str, side: int = 0) -> tuple[Word, ...]:
    """Return the sentences of a text, without the white space around them, as units that people can mark."""
    sentences = []
    for first, last in pairwise([0, *find_sentence_ends(text)]):
        start, end = trim_span(text, first, last)
        if start < end:
            sentences.append(Word(text[start:end], side, start, end))
    return tuple(sentences)


def find_paragraph_ends(text: str) -> list[int]:
    """Return the character at which each paragraph ends: at blank lines, and at the end of the text."""
    ends = []
    for match in _BLANK.finditer(text):
        # blank lines at the beginning and at the end separate nothing
        if text[: match.start()].strip() and text[match.end() :].strip():
            ends.append(match.start())
    return [*ends, len(text)]


def find_part_of_tokens(alignment: Alignment, ends_of: Callable[[str], list[int]]) -> list[int]:
    """Return [L] the number of each token's sentence, or other part, counted through all texts; -1 for special tokens.

    `ends_of` returns the ends of a text's parts, such as `find_sentence_ends`.
    """
    ends, first, parts = list(map(ends_of, alignment.texts)), [0], []
    for text_ends in ends:
        first.append(first[-1] + len(text_ends))
    for span in alignment.spans:
        if span is None:
            parts.append(-1)
            continue
        side, start, _ = span
        # an empty token at the end of the text belongs to the last part
        parts.append(first[side] + min(bisect_right(ends[side], start), len(ends[side]) - 1))
    return parts


def find_text_of_tokens(alignment: Alignment) -> list[int]:
    """Return [L] the number of each token's text, -1 for special tokens."""
    return [-1 if span is None else span[0] for span in alignment.spans]
