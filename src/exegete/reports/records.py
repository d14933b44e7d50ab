"""The parts of an explanation: units of the input and targets of the output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.reports.explanations import Explanation

Output = int | float | tuple[int, int]
"""An output of the model: a class id, a regression value, or a pair: a span's first and last position, two classes."""


class Unit(NamedTuple):
    """A part of the input: its text, and the characters [start, end) of text number `side`; -1: it has no text."""

    text: str
    side: int = -1
    start: int = 0
    end: int = 0


class _CitationFields(NamedTuple):
    text: str
    sources: list[tuple[str, float]]


# A third field would break users who unpack a citation as (text, sources), so the bounds are an attribute.
class Citation(_CitationFields):
    """A part of the response, and the names of its sources with their scores, best first.

    `lower_bounds`: by source, the calibrated lower bound on the fall of the part's log-probability without it.
    """

    lower_bounds: Mapping[str, float] = MappingProxyType({})


class Target(NamedTuple):
    """An output that is explained.

    Attributes:
        text: its name: a label, or the text that a span covers.
        value: the class, the regression's output, or a span; of generated text [start, end) in tokens of the response.
        probability: of the target; of a regression its value.
        log_prob: of generated text, the sum over the span's tokens.
        output: the number that the method explains, for methods whose scores sum to it.
        place: (side, start, end) of the stretch of text that the target is about, for targets that name one.
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


def to_units(values: Iterable[Any], name: str) -> tuple[Unit, ...]:
    """Return units, given as such or as (text, side, start, end). Raises ExegeteError for anything else."""
    units = []
    for value in values:
        fields = tuple(value)
        if len(fields) != 4 or not isinstance(fields[0], str):
            raise ExegeteError(f"{name}: expected a text, and side, start and end in it, got {value!r:.80}")
        units.append(Unit(fields[0], *(int(number) for number in fields[1:])))
    return tuple(units)


def to_targets(values: Iterable[Any]) -> tuple[Target, ...]:
    """Return targets with plain values. Raises ExegeteError for a value that is no output of a model."""
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
    side, start, end = value
    return int(side), int(start), int(end)


def _to_output(value: Any) -> Output:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        return int(value[0]), int(value[1])
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ExegeteError(f"target: expected a class id, a number or a pair (start, end), got {value!r}")


def check(item: Explanation) -> None:
    """Raise ExegeteError if the lengths of an explanation's fields disagree."""
    rows, units, tokens = len(item.targets), len(item.units), len(item.tokens)
    expected = {"scores": (rows, units), "bounds": (rows, units), "token_scores": (rows, tokens)}
    if item.exchange is not None:
        expected["response_scores"] = (rows, len(item.exchange.tokens))
    for name, shape in expected.items():
        array = getattr(item, name)
        if array is not None and array.shape != shape:
            raise ExegeteError(f"{name}: expected {shape[0]} targets × {shape[1]} units, got {array.shape}")
    if item.layers is not None and (item.layers.shape[1] != tokens or not len(item.layers)):
        raise ExegeteError(f"layers: expected at least one layer × {tokens} tokens, got {item.layers.shape}")
    if len(item.special) != tokens:
        raise ExegeteError(f"special: expected {tokens} entries, one per token, got {len(item.special)}")
    if not all(isinstance(text, str) for text in item.texts):
        raise ExegeteError(f"texts: expected strings, got {item.texts!r:.80}")
    if any(not -1 <= unit.side < len(item.texts) for unit in (*item.units, *item.tokens)):
        raise ExegeteError(f"units: expected a side below {len(item.texts)}, the number of texts")
    if any(not (0 <= one < units and 0 <= other < units) for one, other, _ in item.interactions):
        raise ExegeteError(f"interactions: expected units below {units}, got {item.interactions}")
    if item.image_shape is not None and (len(item.image_shape) != 2 or math.prod(item.image_shape) != units):
        raise ExegeteError(f"image_shape: expected rows × columns = {units} patches, got {item.image_shape}")
