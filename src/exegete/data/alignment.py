"""Three views of one example, tied together: characters, words and the model's tokens.

Characters are those of the raw text. Words do not depend on a tokenizer, so scores of different models can be compared
word by word. Tokens come from a `tokenizers.Encoding`, whose offsets and sequence ids are believed and whose own idea
of words is not: it restarts at every text of a pair, and for byte-level tokenizers it splits at punctuation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args
from unicodedata import category

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Encoding

from exegete.errors import ExegeteError, unknown

How = Literal["sum", "max", "mean"]
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


@dataclass(frozen=True, slots=True)
class Word:
    """A word of one text: `text` stands at the characters [start, end) of the raw text number `side`."""

    text: str
    side: int
    start: int
    end: int

    @property
    def span_without_punctuation(self) -> tuple[int, int]:
        """Its first character and the one behind its last, without the punctuation around it."""
        inner = [self.start + at for at, each in enumerate(self.text) if each.isalnum()]
        return (inner[0], inner[-1] + 1) if inner else (self.start, self.end)


@dataclass(frozen=True, slots=True)
class Alignment:
    """One example of L tokens and W words.

    `texts`: the raw texts, one or two. `tokens` [L]: what the tokenizer calls them. `spans` [L]: (side, start, end) of
    each token in raw characters, without white space at its ends, so that a token of white space alone is empty; None
    for special tokens. `words` [W]: of the first text, then of the second, without those that truncation cut off
    entirely; a word that the tokenizer drops stays, with no tokens. `word_of` [L]: index into `words`, or -1 for a
    token that covers no character of a word. `truncated`: whether anything was cut off.
    """

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    spans: tuple[TokenSpan | None, ...]
    words: tuple[Word, ...]
    word_of: tuple[int, ...]
    truncated: bool


def split_words(text: str, side: int = 0) -> tuple[Word, ...]:
    """The words of a text: runs without white space.

    In scripts without spaces (ideographs, kana, Thai, Lao, Khmer, Myanmar) each character, with the combining marks
    that follow it, is a word of its own.
    """
    spans = (span for run in _RUN.finditer(text) for span in _split_run(text, *run.span()))
    return tuple(Word(text[start:end], side, start, end) for start, end in spans)


def align(texts: Sequence[str], encoding: Encoding, truncated: bool = False) -> Alignment:
    """Ties the tokens of an encoding (no padding needed, padding counts as special) to the texts it was made from.

    A token that overlaps several words belongs to the one it shares the most characters with, the first among equals.
    What truncation cut off is read from `encoding.overflowing`; `truncated` says that something was cut off where the
    encoding does not know of it: then every word outside the stretch that a text's tokens cover counts as cut off.

    Raises:
        ExegeteError: the encoding is not one of these texts.
    """
    texts = tuple(texts)
    spans = tuple(_token_spans(texts, encoding))
    cut = _truncated_sides(texts, spans, encoding) or (set(range(len(texts))) if truncated else set())
    words = tuple(
        word
        for side, text in enumerate(texts)
        for word in (_drop_truncated_words(split_words(text, side), spans) if side in cut else split_words(text, side))
    )
    owners = _map_characters_to_words(texts, words)
    word_of = tuple(NO_WORD if span is None else _choose_word(owners[span[0]][span[1] : span[2]]) for span in spans)
    return Alignment(texts, tuple(encoding.tokens), spans, words, word_of, bool(cut))


def token_mask(alignment: Alignment, spans: Iterable[Sequence[int]], side: int = 0) -> list[bool]:
    """[L] Which tokens overlap any of the character spans [start, end) of the text number `side`."""
    marked = _character_mask(alignment.texts[side], spans)
    return [span is not None and span[0] == side and any(marked[span[1] : span[2]]) for span in alignment.spans]


def word_mask(alignment: Alignment, spans: Iterable[Sequence[int]], side: int = 0) -> list[bool]:
    """[W] Which words overlap any of the character spans [start, end) of the text number `side`."""
    marked = _character_mask(alignment.texts[side], spans)
    return [word.side == side and any(marked[word.start : word.end]) for word in alignment.words]


def pool(scores: ArrayLike, word_of: Sequence[int], n_words: int, how: How = "sum") -> NDArray[np.float64]:
    """Token scores [L] to word scores [n_words]; a word without tokens gets 0, tokens without a word are left out.

    Raises ExegeteError for another way of pooling, and where scores and tokens are not as many.
    """
    if how not in get_args(How):
        raise unknown("pooling", how, get_args(How))
    values, index = np.asarray(scores, dtype=np.float64), np.asarray(word_of, dtype=np.int64)
    if values.shape != index.shape:
        raise ExegeteError(f"expected a score for each of {len(index)} tokens, got scores of shape {values.shape}")
    values, index = values[index != NO_WORD], index[index != NO_WORD]
    if how == "max":
        pooled = np.full(n_words, -np.inf)
        np.maximum.at(pooled, index, values)
        pooled[np.bincount(index, minlength=n_words) == 0] = 0.0
        return pooled
    pooled = np.zeros(n_words)
    np.add.at(pooled, index, values)
    return pooled if how == "sum" else pooled / np.maximum(np.bincount(index, minlength=n_words), 1)


def _split_run(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Splits a run without white space where a character of a script without spaces begins or ends."""
    if not _UNSPACED.search(text, start, end):
        yield start, end
        return
    cuts, alone = [start], False
    for position in range(start, end):
        if category(text[position]).startswith("M"):
            continue
        was_alone, alone = alone, _UNSPACED.match(text[position]) is not None
        if position > start and (alone or was_alone):
            cuts.append(position)
    yield from pairwise([*cuts, end])


def _token_spans(texts: tuple[str, ...], encoding: Encoding) -> Iterator[TokenSpan | None]:
    rows = zip(encoding.offsets, encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    for (start, end), side, special in rows:
        if special or side is None:
            yield None
        elif side >= len(texts) or end > len(texts[side]):
            raise ExegeteError(
                f"the encoding is not one of these texts: a token stands at characters {start} to {end} of text "
                f"{side + 1}, expected texts of {[len(text) for text in texts]} characters"
            )
        else:
            yield (side, *trim_span(texts[side], start, end))


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The extent without white space at its ends; of white space alone the empty extent at its end."""
    piece = text[start:end]
    lead = len(piece) - len(piece.lstrip())
    return start + lead, max(start + len(piece.rstrip()), start + lead)


def _truncated_sides(texts: tuple[str, ...], kept: tuple[TokenSpan | None, ...], encoding: Encoding) -> set[int]:
    """The texts of which the encoding itself says that tokens were cut off."""
    spans = {span for part in encoding.overflowing for span in _token_spans(texts, part)}
    return {span[0] for span in spans - set(kept) if span is not None and span[1] < span[2]}


def _drop_truncated_words(words: tuple[Word, ...], spans: tuple[TokenSpan | None, ...]) -> Iterator[Word]:
    """The words of one truncated text that touch the stretch its tokens cover."""
    sides = {word.side for word in words}
    covered = [span for span in spans if span is not None and span[0] in sides and span[1] < span[2]]
    first, last = min((span[1] for span in covered), default=0), max((span[2] for span in covered), default=0)
    return (word for word in words if word.start < last and word.end > first)


def _map_characters_to_words(texts: tuple[str, ...], words: tuple[Word, ...]) -> list[list[int]]:
    """For each character of each text the index of its word, or -1."""
    owners = [[NO_WORD] * len(text) for text in texts]
    for index, word in enumerate(words):
        owners[word.side][word.start : word.end] = [index] * (word.end - word.start)
    return owners


def _choose_word(owners: list[int]) -> int:
    if not owners or owners[0] == owners[-1]:
        return owners[0] if owners else NO_WORD
    shares = Counter(owner for owner in owners if owner != NO_WORD)
    return max(shares, key=lambda owner: shares[owner], default=NO_WORD)


def _character_mask(text: str, spans: Iterable[Sequence[int]]) -> bytearray:
    """1 for each character inside a span."""
    marked = bytearray(len(text))
    for start, end in spans:
        if not 0 <= start <= end <= len(text):
            raise ExegeteError(f"expected spans inside a text of {len(text)} characters, got [{start}, {end}]")
        marked[start:end] = b"\x01" * (end - start)
    return marked
