"""The parts of an explanation, units of the input and targets of the output, and its values as plain ones."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress, groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from expound.data.alignment import find_sentence_ends, split_words
from expound.errors import ExpoundError, check_choice

if TYPE_CHECKING:
    pass


Output = int | float | tuple[int, int]
"""An output of the model: a class id, a regression value, or a pair: a span's first and last position, two classes."""
Extent = tuple[int, int]
Rows = Literal["response", "sentences", "words", "tokens", "answer", "tool_call", "tool_name", "tool_arguments"]


class Unit(NamedTuple):
    """A part of the input: its text, and the characters [start, end) of text number `segment`; -1: it has no text."""

    text: str
    segment: int = -1
    start: int = 0
    end: int = 0


class Part(NamedTuple):
    """Characters [start, end) of a response: a `thought`, the `answer` after it, or (part of) a `tool_call`."""

    kind: str
    start: int
    end: int


class _CitationFields(NamedTuple):
    text: str
    sources: list[tuple[str, float]]


# A third field would break users who unpack a citation as (text, sources), so all else is an attribute.
class Citation(_CitationFields):
    """A part of the response, and the names of its sources with their scores, best first.

    `lower_bounds`: by source, the calibrated lower bound on the fall of the part's log-probability without it. `span`:
    the part's characters [start, end) in the response. `places`: the cited units, in the order of `sources`, as the
    number of their text and their characters in it. `field`: the JSON pointer of a part that is a value of JSON.
    """

    lower_bounds: Mapping[str, float] = MappingProxyType({})
    span: Extent = (0, 0)
    places: tuple[Unit, ...] = ()
    field: str = ""


class Target(NamedTuple):
    """An output that is explained.

    Attributes:
        text: its name: a label, or the text that a span covers.
        value: the class, the regression's output, or a span; of generated text [start, end) in tokens of the response.
        probability: of the target; of a regression its value.
        log_prob: of generated text, the sum over the span's tokens.
        output: the number that the method explains, for methods whose scores sum to it.
        place: (segment, start, end) of the stretch of text that the target is about, for targets that name one.
    """

    text: str
    value: Output
    probability: float
    log_prob: float | None = None
    output: float | None = None
    place: tuple[int, int, int] | None = None

    @property
    def mean_probability(self) -> float:
        """The geometric mean of the probabilities of a response's tokens; of other targets their probability."""
        if self.log_prob is None or not isinstance(self.value, tuple):
            return self.probability
        return math.exp(min(700.0, self.log_prob / (self.value[1] - self.value[0])))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One prompt and its response of R tokens.

    Attributes:
        prompt: the whole text that the model reads.
        names: [S] names of the prompt's visible texts.
        places: [S] their characters in the prompt.
        kinds: [S] what each is: `source`, `prompt`, a role, `thought`, `tool_call` or `tool_result`.
        response: the text that follows the prompt.
        tokens: [R] the tokens of the response as text.
        token_spans: [R] their characters in the response.
        parts: the thoughts and tool calls in the response, and the answer after the thoughts.
    """

    prompt: str
    names: tuple[str, ...]
    places: tuple[Extent, ...]
    kinds: tuple[str, ...]
    response: str
    tokens: tuple[str, ...]
    token_spans: tuple[Extent, ...]
    parts: tuple[Part, ...] = ()

    @property
    def is_source(self) -> tuple[bool, ...]:
        """Whether each visible text was given as a source, [S]."""
        return tuple(kind == "source" for kind in self.kinds)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, in the order of the prompt."""
        return tuple(compress(self.names, self.is_source))

    def select_texts(self, unit: str) -> list[int]:
        """Return the indices of the visible texts with such units; of all texts for `source` if there is no source."""
        if unit == "source" and not any(self.is_source):
            return list(range(len(self.names)))
        if unit in ("source", "tool_result", "thought"):
            return [number for number, kind in enumerate(self.kinds) if kind == unit]
        return list(range(len(self.names)))

    def spans(self, rows: Rows) -> list[Extent]:
        """Return adjacent spans of response tokens: the whole response, or one span per sentence, word or token.

        A token belongs to the sentence or word that it starts in; a token that starts between two belongs to the next.
        `tool_call` gives one span per call (`tool_name` and `tool_arguments` its parts), of the tokens that share
        characters with it; `answer` the tokens after the thoughts.

        Raises:
            ExpoundError: unknown rows, or a tool call of a response without one.
        """
        check_choice("rows of a response", rows, get_args(Rows))
        count = len(self.tokens)
        if rows == "response":
            return [(0, count)]
        if rows == "tokens":
            return [(token, token + 1) for token in range(count)]
        if rows == "answer" or rows.startswith("tool_"):
            return self._find_parts(rows)
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

    def _find_parts(self, kind: str) -> list[Extent]:
        """Return the tokens of each part of this kind; without thoughts the answer is the whole response."""
        spans, count = list[Extent](), len(self.token_spans)
        for part in self.parts:
            if part.kind != kind:
                continue
            inside = [place for place in range(count) if self.token_spans[place][1] > part.start]
            if kind != "answer":
                inside = [place for place in inside if self.token_spans[place][0] < part.end]
            if inside:
                spans.append((inside[0], inside[-1] + 1))
        if not spans and kind == "answer":
            return [(0, count)]
        if not spans:
            raise ExpoundError(
                f"the response has no tool call: {self.response[:60]!r}. It is found in the last message's tool_calls, "
                "or as JSON with a name and arguments; other forms are given as spans of tokens"
            )
        return spans

    def extent(self, span: Extent) -> Extent:
        """Return the characters of the response that a span of its tokens covers."""
        return self.token_spans[span[0]][0], max(end for _, end in self.token_spans[slice(*span)])

    def cut(self, span: Extent) -> str:
        """Return the text of a span of the response's tokens."""
        return self.response[slice(*self.extent(span))]


def check_spans(target: Any, count: int) -> list[Extent]:
    """Return spans of response tokens, given as the index of a token, a span (start, end) or a list of both.

    Raises:
        ExpoundError: another value, or a span that is not within `count` tokens.
    """
    spans: list[Extent] = []
    for value in target if isinstance(target, list) else [target]:
        span = (value, value + 1) if isinstance(value, int) else value
        is_pair = isinstance(span, tuple | list) and len(span) == 2 and all(isinstance(end, int) for end in span)
        if not is_pair or not 0 <= span[0] < span[1] <= count:
            raise ExpoundError(
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
