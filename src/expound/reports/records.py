"""The parts of an explanation, units of the input and targets of the output, and its sums over larger ones."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import compress, groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from expound.data.alignment import find_paragraph_ends, find_sentence_ends, split_words
from expound.errors import ExpoundError, unknown

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

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
        if rows not in get_args(Rows):
            raise unknown("rows of a response", rows, get_args(Rows))
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


SIZES = ("token", "word", "sentence", "paragraph", "message", "source")


def find_groups(item: Explanation, unit: str) -> tuple[tuple[Unit, ...], list[int], dict[int, int]]:
    """Return larger units of an explanation, the index of the larger unit for each of its units, and for white space.

    A unit belongs to the word, sentence or paragraph that it starts in. The index is −1 for white space, which is in
    no word, and for texts of a prompt outside its sources. The last value maps the positions of tokens of white
    space, which are in no word, to the index of the larger unit around them.

    Raises:
        ExpoundError: the units are larger than that already, or have no text.
    """
    if item.unit not in SIZES or unit not in SIZES or SIZES.index(unit) < SIZES.index(item.unit):
        advice = f"choose a larger unit of {SIZES}" if item.unit in SIZES else f"explain with unit={unit!r}"
        raise ExpoundError(f"scores of each {item.unit} cannot be summed by {unit}: {advice}")
    if any(each.segment < 0 for each in item.units):
        raise ExpoundError(f"the units have no text, so they belong to no {unit}")
    ends = [_find_ends(text, unit) for text in item.texts]
    segments = list(range(len(item.texts))) if item.exchange is None else item.exchange.select_texts(unit)
    numbers: dict[tuple[int, int], int] = {}
    groups, merged = list[int](), list[Unit]()
    for each in item.units:
        if each.segment not in segments or (unit == "word" and each.start == each.end):
            groups.append(-1)
            continue
        group = numbers.setdefault(_find_part(each, ends), len(numbers))
        groups.append(group)
        if group == len(merged):
            merged.append(each)
        else:
            merged[group] = each._replace(
                start=min(merged[group].start, each.start), end=max(merged[group].end, each.end)
            )
    named = []
    for each in merged:
        name = item.texts[each.segment][each.start : each.end]
        if unit in ("source", "message") and item.exchange is not None:
            name = item.exchange.names[each.segment]
        named.append(each._replace(text=name or each.text))
    of_space = {}
    if item.unit == "word" and item.token_scores is not None:
        of_space = {place: numbers[part] for place, part in _find_space(item, ends) if part in numbers}
    return tuple(named), groups, of_space


def _find_space(item: Explanation, ends: list[list[int]]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the position and the part of each token of white space."""
    for place, (token, special) in enumerate(zip(item.tokens, item.special, strict=True)):
        if not special and token.segment >= 0 and token.start == token.end:
            yield place, _find_part(token, ends)


def _find_part(unit: Unit, ends: list[list[int]]) -> tuple[int, int]:
    """Return the text of a unit, and the number of the part of that text that it starts in."""
    own = ends[unit.segment]
    return unit.segment, min(bisect_right(own, unit.start), max(len(own) - 1, 0))


def _find_ends(text: str, unit: str) -> list[int]:
    if unit == "word":
        return [word.end for word in split_words(text)]
    if unit == "sentence":
        return find_sentence_ends(text)
    return find_paragraph_ends(text) if unit == "paragraph" else [len(text)]


def group_targets(item: Explanation, kind: str) -> tuple[tuple[Target, ...], list[list[int]]]:
    """Return the sentences of a response (or all of it) that contain targets, and the numbers of their targets.

    A target that lies in no single sentence is its own group.
    """
    assert item.exchange is not None
    parts = item.exchange.spans(cast(Literal["response", "sentences"], kind))
    groups: dict[tuple[int, int], list[int]] = {}
    for row, target in enumerate(item.targets):
        start, end = cast(tuple[int, int], target.value)
        key = (start, end)
        for part in parts:
            if part[0] <= start and end <= part[1]:
                key = part
                break
        groups.setdefault(key, []).append(row)
    targets = []
    for span, rows in groups.items():
        first = item.targets[rows[0]]
        if len(rows) > 1:
            log_prob = sum(item.targets[row].log_prob or 0.0 for row in rows)
            first = make_response_target(item.exchange.cut(span), span, log_prob)
        targets.append(first._replace(text=item.exchange.cut(span)))
    return tuple(targets), list(groups.values())


def make_response_target(text: str, span: tuple[int, int], log_prob: float) -> Target:
    """Return the target of a span of a response."""
    # A contrast of two responses has a ratio here, whose exponential may be too large for a float.
    return Target(text, span, math.exp(min(700.0, log_prob)), log_prob)


def sum_targets(item: Explanation, target: str) -> Explanation:
    """Return an explanation with its targets summed over the "response" or over each of its "sentences".

    Raises:
        ExpoundError: another value, or an explanation of no generated text.
    """
    if item.exchange is None or target not in ("response", "sentences"):
        raise unknown("aggregation of targets", target, ("response", "sentences") if item.exchange else ())
    targets, rows = group_targets(item, target)
    changes: dict[str, Any] = {"targets": targets, "scores": [item.scores[row].sum(0) for row in rows]}
    if item.bounds is not None:
        # Bounds hold for single spans: they cannot be added up.
        missing = np.full(len(item.units), np.nan)
        bounds = []
        for row in rows:
            bounds.append(item.bounds[row[0]] if len(row) == 1 else missing)
        changes["bounds"] = bounds
    if item.rest is not None:
        changes["rest"] = [item.rest[row].sum() for row in rows]
    if item.response_scores is not None:
        changes["response_scores"] = [item.response_scores[row].sum(0) for row in rows]
    return replace(item, **changes)


def list_citations(item: Explanation, k: int, unit: str, target: str | None) -> list[Citation]:
    """Return the k best units of each part of the response, see `Explanation.citations`."""
    exchange = item.exchange
    if exchange is None:
        raise ExpoundError("only a response has citations: explain a model loaded with task='generation'")
    table = item.aggregate(unit, target)
    kinds = next(({kind} for kind in ("source", "tool_result") if kind in exchange.kinds), set(exchange.kinds))
    cited = [number for number, each in enumerate(table.units) if exchange.kinds[each.segment] in kinds]
    citations = []
    for row, part in enumerate(table.targets):
        best = [cited[place] for place in np.argsort(-table.scores[row, cited], kind="stable")[:k]]
        places = tuple(table.units[number] for number in best)
        names = [exchange.names[place.segment] for place in places]
        citation = Citation(part.text, list(zip(names, table.scores[row, best].tolist(), strict=True)))
        if unit == "source":
            bounds = table.lower_bounds(row)
            citation.lower_bounds = {name: bounds[name] for name in names if name in bounds}
        citation.span, citation.places = exchange.extent(cast(tuple[int, int], part.value)), places
        citations.append(citation)
    return citations


UNTRUSTED = ("tool_result", "source")


def find_margins(item: Explanation, row: int) -> dict[str, float]:
    """Return the margin of each result of a tool and each source: its effect minus that of the user's last message.

    Effects are scores per token of the target. A positive margin of an action means that a text which the user did not
    write decides more than the request does, the mark of a prompt injection (CausalArmor, Kim et al. 2026).

    Raises:
        ExpoundError: the units are not the messages of a conversation with a request.
    """
    kinds = item.exchange.kinds if item.exchange is not None and item.unit == "message" else ()
    effects = [
        (kinds[unit.segment], unit.text, float(item.scores[row, n])) for n, unit in enumerate(item.units) if kinds
    ]
    requests = [effect for kind, _, effect in effects if kind == "user"]
    if not requests:
        raise ExpoundError("margins compare messages with the user's request: explain a chat with unit='message'")
    span = item.targets[row].value
    assert isinstance(span, tuple)
    count = span[1] - span[0]
    return {name: (effect - requests[-1]) / count for kind, name, effect in effects if kind in UNTRUSTED}


def describe_margins(item: Explanation, row: int) -> str:
    """Return the margins of a target in words; empty if no text of a tool or a source is a unit beside a request."""
    kinds = item.exchange.kinds if item.exchange is not None and item.unit == "message" else ()
    if "user" not in kinds or not set(UNTRUSTED) & set(kinds):
        return ""
    parts = []
    for name, margin in find_margins(item, row).items():
        parts.append(f"{name} {margin:+.3g} ({'exceeds' if margin > 0 else 'below'} the user's request)")
    return f"margin per token: {', '.join(parts)}"
