"""Alignment of the three views of an example: characters, words and the model's tokens.

Characters are counted in the raw text. Words do not depend on a tokenizer, so different models' scores can be compared
word by word. Tokens come from a `tokenizers.Encoding`. Its offsets and sequence ids are used; its `word_ids` are not,
because they restart at every text of a pair, and byte-level tokenizers split words at punctuation.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args
from unicodedata import category

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Encoding

from expound.errors import ExpoundError, unknown

Pooling = Literal["sum", "max", "mean"]
TokenSpan = tuple[int, int, int]

NO_WORD = -1
_RUN = re.compile(r"\S+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f"  # Myanmar, Khmer
    "\u2e80-\u2fdf\u3001-\u303f\u3040-\u30ff\u31c0-\u31ff"  # radicals, CJK punctuation, kana, strokes
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"  # ideographs, half-width kana
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"  # further kana and ideographs
)
# Marks of Latin and Arabic scripts need white space after them (as in 3.14), those of CJK and Indic scripts do not, and
# Thai has none: it writes a space between sentences.
_END = re.compile(
    r"""[.!?…؟۔]+["'”’»)\]]*(?=\s)|(?:[。！？｡।॥။។።]|．(?!\d))+["'”’」』）]*|(?=\n)"""
    "|(?<=[\u0e01-\u0e5b])(?= +[\u0e01-\u0e5b])"
)
_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
_ABBREVIATION = re.compile(r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|cf|Fig|al))\.$")


@dataclass(frozen=True, slots=True)
class Word:
    """A word: the characters [start, end) of the raw text number `segment`."""

    text: str
    segment: int
    start: int
    end: int

    @property
    def span_without_punctuation(self) -> tuple[int, int]:
        """The characters [start, end) without the punctuation around the word."""
        inner = [position for position, character in enumerate(self.text, self.start) if character.isalnum()]
        return (inner[0], inner[-1] + 1) if inner else (self.start, self.end)


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of an example with L tokens and W words.

    Attributes:
        texts: the raw texts, one or two.
        tokens: [L] the tokens as the tokenizer writes them.
        spans: [L] (segment, start, end) of each token in raw characters, without white space at its ends; a token
            of white space has an empty span, a special token None.
        words: [W] the words of the first text, then of the second, except those that were truncated. A word that the
            tokenizer drops is kept and has no tokens.
        word_of: [L] index into `words`, or -1 for a token that covers no character of a word.
        truncated: whether tokens were cut off.
    """

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    spans: tuple[TokenSpan | None, ...]
    words: tuple[Word, ...]
    word_of: tuple[int, ...]
    truncated: bool


def split_words(text: str, segment: int = 0) -> tuple[Word, ...]:
    """Split a text at white space into words.

    In scripts without spaces (ideographs, kana, Thai, Lao, Khmer, Myanmar) each character, with the combining marks
    that follow it, is a word.
    """
    words = []
    for run in _RUN.finditer(text):
        for start, end in _split_run(text, *run.span()):
            words.append(Word(text[start:end], segment, start, end))
    return tuple(words)


def align(texts: Sequence[str], encoding: Encoding, truncated: bool = False) -> Alignment:
    """Align the tokens of an encoding with the texts that it was made from. Padding counts as special tokens.

    A token that overlaps several words belongs to the one with which it shares the most characters, the first in a tie.

    Args:
        texts: the raw texts, one or two.
        encoding: the tokenizer's encoding of them. Truncated tokens are found in `encoding.overflowing`.
        truncated: whether the texts were truncated without a record in the encoding. Words outside of the characters
            that a text's tokens cover are then left out.

    Raises:
        ExpoundError: the encoding does not belong to these texts, or a token with characters belongs to no word.
    """
    texts = tuple(texts)
    spans = tuple(_token_spans(texts, encoding))
    truncated_segments = _truncated_segments(texts, spans, encoding)
    if truncated and not truncated_segments:
        truncated_segments = set(range(len(texts)))
    words: list[Word] = []
    for segment, text in enumerate(texts):
        text_words = split_words(text, segment)
        if segment in truncated_segments:
            text_words = _drop_truncated_words(text_words, segment, spans)
        words += text_words
    owners = _number_characters(texts, [(word.segment, word.start, word.end) for word in words])
    word_of = []
    for span in spans:
        if span is None:
            word_of.append(NO_WORD)
        else:
            segment, start, end = span
            word_of.append(_choose_most(owners[segment][start:end]))
            if start < end and word_of[-1] == NO_WORD:
                raise ExpoundError(f"the token {texts[segment][start:end]!r:.40} belongs to no word of its text")
    return Alignment(texts, tuple(encoding.tokens), spans, tuple(words), tuple(word_of), bool(truncated_segments))


def token_mask(alignment: Alignment, spans: Iterable[Sequence[int]], segment: int = 0) -> list[bool]:
    """Return [L] whether each token overlaps a character span [start, end) of the text number `segment`."""
    marked = _character_mask(alignment.texts[segment], spans)
    return [span is not None and span[0] == segment and any(marked[span[1] : span[2]]) for span in alignment.spans]


def word_mask(alignment: Alignment, spans: Iterable[Sequence[int]], segment: int = 0) -> list[bool]:
    """Return [W] whether each word overlaps a character span [start, end) of the text number `segment`."""
    marked = _character_mask(alignment.texts[segment], spans)
    return [word.segment == segment and any(marked[word.start : word.end]) for word in alignment.words]


def pool(scores: ArrayLike, word_of: Sequence[int], n_words: int, pooling: Pooling = "sum") -> NDArray[np.float64]:
    """Pool token scores [L] to word scores [n_words]. A word without tokens gets 0; tokens without a word are ignored.

    Raises ExpoundError for an unknown way of pooling, and if there are not as many scores as tokens.
    """
    if pooling not in get_args(Pooling):
        raise unknown("pooling", pooling, get_args(Pooling))
    values, index = np.asarray(scores, dtype=np.float64), np.asarray(word_of, dtype=np.int64)
    if values.shape != index.shape:
        raise ExpoundError(f"expected a score for each of {len(index)} tokens, got scores of shape {values.shape}")
    values, index = values[index != NO_WORD], index[index != NO_WORD]
    if pooling == "max":
        pooled = np.full(n_words, -np.inf)
        np.maximum.at(pooled, index, values)
        pooled[np.bincount(index, minlength=n_words) == 0] = 0.0
        return pooled
    pooled = np.zeros(n_words)
    np.add.at(pooled, index, values)
    if pooling == "mean":
        pooled /= np.maximum(np.bincount(index, minlength=n_words), 1)
    return pooled


def _split_run(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the words of a run without white space; characters of scripts without spaces are words."""
    if not _UNSPACED.search(text, start, end):
        yield start, end
        return
    cuts, alone = [start], False
    for position in range(start, end):
        # combining marks stay with the character before them
        if category(text[position]).startswith("M"):
            continue
        was_alone, alone = alone, _UNSPACED.match(text[position]) is not None
        if position > start and (alone or was_alone):
            cuts.append(position)
    yield from pairwise([*cuts, end])


def _token_spans(texts: tuple[str, ...], encoding: Encoding) -> Iterator[TokenSpan | None]:
    rows = zip(encoding.offsets, encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    for (start, end), segment, special in rows:
        if special:
            yield None
        elif segment is None:
            raise ExpoundError(
                f"the tokenizer does not say which text its characters {start} to {end} belong to: its scores would be "
                "lost; install another version of tokenizers"
            )
        elif segment >= len(texts) or end > len(texts[segment]):
            raise ExpoundError(
                f"the encoding does not belong to these texts: a token has characters {start} to {end} of text "
                f"{segment + 1}, expected texts of {list(map(len, texts))} characters"
            )
        else:
            yield (segment, *trim_span(texts[segment], start, end))


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without white space at its ends; a span of white space becomes the empty span at its end."""
    piece = text[start:end]
    lead = len(piece) - len(piece.lstrip())
    return start + lead, max(start + len(piece.rstrip()), start + lead)


def _truncated_segments(texts: tuple[str, ...], kept: tuple[TokenSpan | None, ...], encoding: Encoding) -> set[int]:
    """Return the segments whose truncated tokens the encoding has in `overflowing`."""
    segments, known = set(), set(kept)
    for part in encoding.overflowing:
        for span in _token_spans(texts, part):
            # with a stride, overflowing parts repeat tokens that were kept
            if span is not None and span[1] < span[2] and span not in known:
                segments.add(span[0])
    return segments


def _drop_truncated_words(
    words: tuple[Word, ...], segment: int, spans: tuple[TokenSpan | None, ...]
) -> tuple[Word, ...]:
    """Return the words of a truncated text that overlap the characters from its first to its last token."""
    starts, ends = [], []
    for span in spans:
        if span is not None and span[0] == segment and span[1] < span[2]:
            starts.append(span[1])
            ends.append(span[2])
    first, last = min(starts, default=0), max(ends, default=0)
    return tuple(word for word in words if word.start < last and word.end > first)


def _number_characters(texts: tuple[str, ...], spans: Sequence[TokenSpan]) -> list[list[int]]:
    """Return for each character of each text the number of its span, or -1."""
    owners = [[NO_WORD] * len(text) for text in texts]
    for number, (segment, start, end) in enumerate(spans):
        owners[segment][start:end] = [number] * (end - start)
    return owners


def _choose_most(owners: list[int]) -> int:
    """Return the word or span with most of a token's characters, or -1; `owners`: that of each character."""
    # Nearly all tokens are inside of one word, and counting takes longer.
    if owners and owners[0] == owners[-1] != NO_WORD:
        return owners[0]
    counts = Counter(owner for owner in owners if owner != NO_WORD)
    return max(counts, key=lambda owner: counts[owner], default=NO_WORD)


def _character_mask(text: str, spans: Iterable[Sequence[int]]) -> bytearray:
    """Return 1 for each character in a span, 0 for others."""
    marked = bytearray(len(text))
    for start, end in spans:
        if not 0 <= start <= end <= len(text):
            raise ExpoundError(f"expected spans inside a text of {len(text)} characters, got [{start}, {end}]")
        marked[start:end] = b"\x01" * (end - start)
    return marked


def find_sentence_ends(text: str) -> list[int]:
    """Return the character at which each sentence ends; the white space before a sentence belongs to it.

    A sentence ends at a line break, and at a full stop, question mark or exclamation mark before white space, unless a
    lower-case letter follows or the stop belongs to a common abbreviation; in Thai at a space. The last sentence ends
    with the text.
    """
    ends: list[int] = []
    for match in _END.finditer(text):
        end, start = match.end(), ends[-1] if ends else 0
        following = text[end:].lstrip()[:1]
        inside = match.group() and (following.islower() or _ABBREVIATION.search(text, start, end))
        if following and not inside and text[start:end].strip():
            ends.append(end)
    return [*ends, len(text)]


def split_sentences(text: str, segment: int = 0) -> tuple[Word, ...]:
    """Return the sentences of a text, without the white space around them, as units that people can mark."""
    sentences = []
    for first, last in pairwise([0, *find_sentence_ends(text)]):
        start, end = trim_span(text, first, last)
        if start < end:
            sentences.append(Word(text[start:end], segment, start, end))
    return tuple(sentences)


def find_paragraph_ends(text: str) -> list[int]:
    """Return the character at which each paragraph ends: at blank lines, and at the end of the text."""
    ends = []
    for match in _BLANK.finditer(text):
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
        segment, start, _ = span
        parts.append(first[segment] + min(bisect_right(ends[segment], start), len(ends[segment]) - 1))
    return parts


def find_span_of_tokens(alignment: Alignment, spans: Sequence[TokenSpan]) -> list[int]:
    """Return [L] the number of the span (segment, start, end) with most of each token's characters, -1 without.

    A token of white space belongs to the span that holds the character before its end.
    """
    owners = _number_characters(alignment.texts, spans)
    numbers = []
    for span in alignment.spans:
        segment, start, end = span or (0, 0, 0)
        numbers.append(_choose_most(owners[segment][start if start < end else max(start - 1, 0) : end]))
    return numbers


def find_text_of_tokens(alignment: Alignment) -> list[int]:
    """Return [L] the number of each token's text, -1 for special tokens."""
    return [-1 if span is None else span[0] for span in alignment.spans]


def map_tokens(source: Alignment, target: Alignment) -> list[list[int]]:
    """Return for every token of `target` the tokens of `source` that share a character with it, in order.

    A token without a shared character (white space, a dropped accent) gets the tokens of its nearest neighbors on both
    sides. Special tokens, and tokens of text that was truncated in `source`, are left out. Equal tokenizations map each
    token to itself.

    Raises:
        ExpoundError: the alignments are of different texts.
    """
    if source.texts != target.texts:
        raise ExpoundError("token scores can only move between tokenizations of the same text")
    mapping: list[list[int]] = [[] for _ in target.spans]
    if (source.tokens, source.spans) == (target.tokens, target.spans):
        # without this, tokens of white space would get their neighbors instead of themselves
        for index, span in enumerate(target.spans):
            if span is not None:
                mapping[index] = [index]
        return mapping
    for side in range(len(target.texts)):
        source_tokens, target_tokens = _tokens_of_text(source, side), _tokens_of_text(target, side)
        source_spans, target_spans = list(source_tokens.values()), list(target_tokens.values())
        overlaps = list(_find_overlaps(source_spans, target_spans))
        end = None
        if source.truncated:
            end = max((span[2] for span in source_spans), default=0)
        filled = _fill_from_neighbors(overlaps, end, target_spans)
        positions = list(source_tokens)
        for position, indices in zip(target_tokens, filled, strict=True):
            mapping[position] = [positions[index] for index in indices]
    return mapping


def _tokens_of_text(alignment: Alignment, side: int) -> dict[int, TokenSpan]:
    """Return the spans of the tokens of one text by their positions."""
    return {i: span for i, span in enumerate(alignment.spans) if span is not None and span[0] == side}


def _find_overlaps(source: Sequence[TokenSpan], target: Sequence[TokenSpan]) -> Iterator[list[int]]:
    """Yield for each target span the indices of the source spans that overlap it; both are in the order of the text."""
    first = 0
    for _, start, end in target:
        # source spans that end before this one also end before all later ones, so the search is linear in both
        while first < len(source) and source[first][2] <= start:
            first += 1
        indices, index = [], first
        while index < len(source) and source[index][1] < end:
            if source[index][2] > start and end > start:
                indices.append(index)
            index += 1
        yield indices


def _fill_from_neighbors(rows: list[list[int]], end: int | None, spans: Sequence[TokenSpan]) -> list[list[int]]:
    """Replace empty rows by the nearest rows before and after, unless their spans begin at `end` or later."""
    after: list[list[int]] = []
    nearest: list[int] = []
    for row in reversed(rows):
        nearest = row or nearest
        after.append(nearest)
    filled, before = [], list[int]()
    for row, following, (_, start, _) in zip(rows, reversed(after), spans, strict=True):
        before = row or before
        is_truncated = end is not None and start >= end
        if not row and not is_truncated:
            filled.append(list(dict.fromkeys([*before, *following])))
        else:
            filled.append(row)
    return filled
