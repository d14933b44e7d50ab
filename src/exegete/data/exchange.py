"""A prompt and its response as text, with the parts of the prompt that a user can see and change."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import compress, groupby
from typing import Any, Literal, get_args

from exegete.data.alignment import split_words
from exegete.data.sentences import find_sentence_ends
from exegete.errors import ExegeteError, check_choice

Extent = tuple[int, int]
Rows = Literal["response", "sentences", "words", "tokens"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One prompt and its response of R tokens.

    Attributes:
        prompt: the whole text that the model reads.
        names: [S] names of the prompt's visible texts.
        places: [S] their characters in the prompt.
        is_source: [S] whether they were given as sources.
        response: the text that follows the prompt.
        tokens: [R] the tokens of the response as text.
        token_spans: [R] their characters in the response.
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
        """The names of the sources, in the order of the prompt."""
        return tuple(compress(self.names, self.is_source))

    def spans(self, rows: Rows) -> list[Extent]:
        """Return adjacent spans of response tokens: the whole response, or one span per sentence, word or token.

        A token belongs to the sentence or word that it starts in; a token that starts between two belongs to the next.

        Raises:
            ExegeteError: unknown rows.
        """
        check_choice("rows of a response", rows, get_args(Rows))
        count = len(self.tokens)
        if rows == "response":
            return [(0, count)]
        if rows == "tokens":
            return [(token, token + 1) for token in range(count)]
        if rows == "sentences":
            ends = find_sentence_ends(self.response)
        else:
            ends = [word.end for word in split_words(self.response)]
        spans, first = list[Extent](), 0
        # The last end is left out, so that tokens after it belong to the last sentence or word.
        owners = [bisect_right(ends[:-1], start) for start, _ in self.token_spans]
        for _, tokens in groupby(owners):
            last = first + len(list(tokens))
            spans.append((first, last))
            first = last
        return spans or [(0, count)]

    def extent(self, span: Extent) -> Extent:
        """Return the characters of the response that a span of its tokens covers."""
        return self.token_spans[span[0]][0], max(end for _, end in self.token_spans[slice(*span)])

    def cut(self, span: Extent) -> str:
        """Return the text of a span of the response's tokens."""
        return self.response[slice(*self.extent(span))]


def check_spans(target: Any, count: int) -> list[Extent]:
    """Return spans of response tokens, given as the number of a token, a span (start, end) or a list of those.

    Raises:
        ExegeteError: another value, or a span that is not within `count` tokens.
    """
    spans: list[Extent] = []
    for value in target if isinstance(target, list) else [target]:
        span = (value, value + 1) if isinstance(value, int) else value
        is_pair = isinstance(span, tuple | list) and len(span) == 2 and all(isinstance(end, int) for end in span)
        if not is_pair or not 0 <= span[0] < span[1] <= count:
            raise ExegeteError(
                f"a target of generated text is one of {', '.join(get_args(Rows))}, or spans (start, end) within the "
                f"{count} response tokens, got {span!r:.80}"
            )
        spans.append((span[0], span[1]))
    return spans


def find_target_spans(exchange: Exchange, target: Any) -> list[Extent]:
    """Return the spans of a response to explain, given their kind ("sentences", "words", …) or the spans themselves.

    Of sentences that a response repeats only the first is explained.
    """
    if not isinstance(target, str):
        return check_spans(target, len(exchange.tokens))
    if target == "predicted":
        target = "response"
    spans = exchange.spans(target)
    if target != "sentences":
        return spans
    distinct: dict[str, Extent] = {}
    for span in spans:
        distinct.setdefault(exchange.cut(span).strip(), span)
    return list(distinct.values())
