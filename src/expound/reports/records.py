"""The parts of an explanation, units of the input and targets of the output, and its values as plain ones."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expound.data.alignment import find_sentence_ends, split_words
from expound.errors import ExpoundError, check_choice

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


def to_units(values: Iterable[Any], name: str) -> tuple[Unit, ...]:
    """Return units, given as such or as (text, segment, start, end). Raises ExpoundError for anything else."""
    units = []
    for value in values:
        fields = tuple(value)
        if len(fields) != 4 or not isinstance(fields[0], str):
            raise ExpoundError(f"{name}: expected a text, and segment, start and end in it, got {value!r:.80}")
        units.append(Unit(fields[0], *(int(number) for number in fields[1:])))
    return tuple(units)


def to_targets(values: Iterable[Any]) -> tuple[Target, ...]:
    """Return targets with plain values. Raises ExpoundError for a value that is no output of a model."""
    targets = []
    for value in values:
        target = Target(*value)
        log_prob = None if target.log_prob is None else float(target.log_prob)
        output = None if target.output is None else float(target.output)
        place = None if target.place is None else _to_place(target.place)
        targets.append(
            Target(str(target.text), _to_output(target.value), float(target.probability), log_prob, output, place)
        )
    return tuple(targets)


def _to_place(value: Sequence[Any]) -> tuple[int, int, int]:
    segment, start, end = value
    return int(segment), int(start), int(end)


def _to_output(value: Any) -> Output:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        return int(value[0]), int(value[1])
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ExpoundError(f"target: expected a class id, a number or a pair (start, end), got {value!r}")


def check(item: Explanation) -> None:
    """Raise ExpoundError if the lengths of an explanation's fields disagree."""
    rows, units, tokens = len(item.targets), len(item.units), len(item.tokens)
    expected = {"scores": (rows, units), "bounds": (rows, units), "token_scores": (rows, tokens)}
    if item.exchange is not None:
        expected["response_scores"] = (rows, len(item.exchange.tokens))
    for name, shape in expected.items():
        array = getattr(item, name)
        if array is not None and array.shape != shape:
            raise ExpoundError(f"{name}: expected {shape[0]} targets × {shape[1]} units, got {array.shape}")
    if item.layers is not None and (item.layers.shape[1] != tokens or not len(item.layers)):
        raise ExpoundError(f"layers: expected at least one layer × {tokens} tokens, got {item.layers.shape}")
    if len(item.special) != tokens:
        raise ExpoundError(f"special: expected {tokens} entries, one per token, got {len(item.special)}")
    if not all(isinstance(text, str) for text in item.texts):
        raise ExpoundError(f"texts: expected strings, got {item.texts!r:.80}")
    if any(not -1 <= unit.segment < len(item.texts) for unit in (*item.units, *item.tokens)):
        raise ExpoundError(f"units: expected a segment below {len(item.texts)}, the number of texts")
    if any(not (0 <= one < units and 0 <= other < units) for one, other, _ in item.interactions):
        raise ExpoundError(f"interactions: expected units below {units}, got {item.interactions}")
    if item.image_shape is not None and (len(item.image_shape) != 2 or math.prod(item.image_shape) != units):
        raise ExpoundError(f"image_shape: expected rows × columns = {units} patches, got {item.image_shape}")


def to_float_array(values: ArrayLike, name: str, ndim: int) -> NDArray[np.float32]:
    """Return a read-only copy of `values` with `ndim` dimensions.

    Raises:
        ExpoundError: values that are not numbers, or another number of dimensions; `name` is used in the message.
    """
    try:
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ExpoundError(f"{name}: expected numbers, got {values!r}") from error
    if array.ndim != ndim:
        raise ExpoundError(f"{name}: expected {ndim} dimension{'s'[: ndim - 1]}, got shape {array.shape}")
    # Records are hashable and compared by value, so their arrays must not change.
    array.setflags(write=False)
    return array


def to_json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy as JSON reads it back. Raises ExpoundError when JSON cannot hold a value."""
    try:
        # Encoding once here turns tuples into lists, so that a saved and loaded record equals the original.
        copy: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ExpoundError(f"expected values that JSON can hold, got {values!r} ({error})") from error
    return copy


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and are equal; NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    # Without the type check, class 1 would equal the regression value 1.0 and True.
    return type(one) is type(other) and bool(one == other)
