"""A prompt and the response to it as text, with the parts of the prompt that a user can see and change."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Literal, get_args

from exegete.data.alignment import split_words
from exegete.data.sentences import find_sentence_ends
from exegete.errors import ExegeteError, unknown

Extent = tuple[int, int]
Rows = Literal["response", "sentences", "words", "tokens"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One prompt and its response of R tokens.

    `prompt`: all that the model reads. `names` [S] and `places` [S]: its visible texts, and where they stand in it;
    `is_source` [S]: those that were given as sources. `response` and `tokens` [R]: what follows, and what the tokenizer
    calls its parts; `token_spans` [R]: their characters in the response.
    """

    prompt: str
    names: tuple[str, ...]
    places: tuple[Extent, ...]
    is_source: tuple[bool, ...]
    response: str
    tokens: tuple[str, ...]
    token_spans: tuple[Extent, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, in their order in the prompt."""
        return tuple(name for name, source in zip(self.names, self.is_source, strict=True) if source)

    def spans(self, rows: Rows) -> list[Extent]:
        """Spans of response tokens, without gaps: the whole, or one for each sentence, word or token.

        A token belongs to the sentence or word that it starts in, and where it starts in none to the next one.

        Raises:
            ExegeteError: unknown rows.
        """
        if rows not in get_args(Rows):
            raise unknown("rows of a response", rows, get_args(Rows))
        count = len(self.tokens)
        if rows in ("response", "tokens"):
            return [(0, count)] if rows == "response" else [(token, token + 1) for token in range(count)]
        ends = find_sentence_ends(self.response) if rows == "sentences" else [w.end for w in split_words(self.response)]
        owner = [min(bisect_right(ends, start), max(len(ends) - 1, 0)) for start, _ in self.token_spans]
        starts = [0, *(token for token in range(1, count) if owner[token] != owner[token - 1])]
        return list(zip(starts, [*starts[1:], count], strict=True))

    def extent(self, span: Extent) -> Extent:
        """The characters of the response that a span of its tokens covers."""
        return self.token_spans[span[0]][0], max(end for _, end in self.token_spans[slice(*span)])


def check_spans(given: Any, count: int) -> list[Extent]:
    """Spans within `count` response tokens, from a token's number, a span (start, end) or a list of those.

    Raises:
        ExegeteError: anything else.
    """
    each = given if isinstance(given, list) else [given]
    found = [(one, one + 1) if isinstance(one, int) else one for one in each]
    for one in found:
        pair = isinstance(one, tuple | list) and len(one) == 2 and all(isinstance(number, int) for number in one)
        if not pair or not 0 <= one[0] < one[1] <= count:
            raise ExegeteError(
                f"a target of generated text is one of {', '.join(get_args(Rows))}, or spans (start, end) within the "
                f"{count} response tokens, got {one!r:.80}"
            )
    return [(one[0], one[1]) for one in found]
