"""The attribution of generated text as plain values: a row for each explained span of the response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isnan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from exegete.data.exchange import Exchange, Extent
from exegete.errors import ExegeteError
from exegete.reports import storage
from exegete.reports.highlighted import generated_view, highlight
from exegete.reports.plain_values import is_equal, replace_non_finite, to_float_array, to_json_values, to_strings

if TYPE_CHECKING:
    import pandas as pd

_FROM_EXCHANGE = tuple(each.name for each in fields(Exchange))


class _CitationFields(NamedTuple):
    text: str
    sources: list[tuple[str, float]]


class Citation(_CitationFields):
    """A part of the response, and the names of the sources it comes from with their scores, best first.

    `promised`: by source, how much the part's log-probability falls at least without it, as often as was calibrated.
    """

    lower_bounds: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedAttribution:
    """Scores of a prompt's units for a model's response: T explained spans, U units of the prompt.

    `scores` [T, U]; `units` [U]: words, sentences or names of sources, as `unit` says; `unit_spans` [U]: (text, start,
    end) in characters of the visible text of that number; `spans` [T]: (start, end) in tokens of the response;
    `log_probs` [T] of the spans; `exchange`: the prompt and the response. `signed`: whether negative scores mean
    evidence against a span. `truncated`: whether the prompt was cut. `index`: the position in the input. `bounds`
    [T, U]: by how much a span's log-probability is promised to fall without a unit, NaN where nothing is. `prefix`
    [T, R]: scores of the response's own tokens, NaN of those that a span does not read.

    Raises `ExegeteError` when lengths disagree or `params` are not JSON.
    """

    STORAGE_FORMAT: ClassVar[storage.StorageFormat] = storage.GENERATED
    scores: NDArray[np.float32]
    units: tuple[str, ...]
    unit_spans: tuple[tuple[int, int, int], ...]
    spans: tuple[Extent, ...]
    log_probs: NDArray[np.float32]
    exchange: Exchange
    unit: str
    method: str
    params: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    signed: bool = True
    truncated: bool = False
    bounds: NDArray[np.float32] | None = None
    prefix: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        plain = {
            "scores": to_float_array(self.scores, "scores", 2),
            "units": to_strings(self.units, "units"),
            "unit_spans": tuple((int(text), int(start), int(end)) for text, start, end in self.unit_spans),
            "spans": tuple((int(start), int(end)) for start, end in self.spans),
            "log_probs": to_float_array(self.log_probs, "log_probs", 1),
            "params": to_json_values(self.params),
            "bounds": None if self.bounds is None else to_float_array(self.bounds, "bounds", 2),
            "prefix": None if self.prefix is None else to_float_array(self.prefix, "prefix", 2),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        shape = (len(self.spans), len(self.units))
        if self.scores.shape != shape or len(self.log_probs) != shape[0] or len(self.unit_spans) != shape[1]:
            raise ExegeteError(f"expected scores of {shape[0]} spans × {shape[1]} units, got {self.scores.shape}")
        if self.bounds is not None and self.bounds.shape != shape:
            raise ExegeteError(f"expected bounds of {shape[0]} spans × {shape[1]} units, got {self.bounds.shape}")
        read = (shape[0], len(self.exchange.tokens))
        if self.prefix is not None and self.prefix.shape != read:
            raise ExegeteError(f"expected a prefix of {read[0]} spans × {read[1]} tokens, got {self.prefix.shape}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GeneratedAttribution):
            return NotImplemented
        return all(is_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        return hash((self.units, self.spans, self.method, self.index))

    def _repr_html_(self) -> str:
        return highlight.render_fragment([self])

    @property
    def prompt(self) -> str:
        """All that the model read."""
        return self.exchange.prompt

    @property
    def response(self) -> str:
        """The text that is explained."""
        return self.exchange.response

    @property
    def row_texts(self) -> tuple[str, ...]:
        """[T] The text of each explained span."""
        return tuple(self.response[slice(*self.exchange.extent(span))] for span in self.spans)

    @property
    def places(self) -> tuple[Extent, ...]:
        """[U] The characters of each unit in the prompt."""
        starts = [self.exchange.places[text][0] for text, _, _ in self.unit_spans]
        return tuple((at + start, at + end) for at, (_, start, end) in zip(starts, self.unit_spans, strict=True))

    def top(self, k: int = 3, row: int | None = None) -> list[tuple[str, float]]:
        """The k units with the highest scores in one row, or in all together, best first; ties in order."""
        scores = self.scores.sum(0) if row is None else self.scores[row]
        order = np.argsort(-scores, kind="stable")[:k]
        return [(self.units[unit], float(scores[unit])) for unit in order]

    def citations(self, k: int = 2) -> list[Citation]:
        """The k best sources of each sentence of the response (of each row, where rows hold more than one).

        A source's score is the sum of its units' in all the sentence's rows; without sources all visible texts count.
        """
        shown = [own or not any(self.exchange.is_source) for own in self.exchange.is_source]
        belongs = np.array([[text == number for number in range(len(shown))] for text, _, _ in self.unit_spans])
        by_text = self.scores @ belongs.reshape(len(self.units), len(shown))
        found = []
        for span, rows in self._sentences():
            scores = np.where(shown, by_text[rows].sum(0), -np.inf)
            best = np.argsort(-scores, kind="stable")[: min(k, sum(shown))]
            text = self.response[slice(*self.exchange.extent(span))]
            cited = [(self.exchange.names[each], float(scores[each])) for each in best]
            promised = self.lower_bounds(rows[0]) if len(rows) == 1 else {}
            found.append(Citation(text, cited))
            found[-1].lower_bounds = {name: promised[name] for name, _ in cited if name in promised}
        return found

    def lower_bounds(self, row: int) -> dict[str, float]:
        """By unit, the bound on what a row loses without it; nothing where nothing is promised."""
        bounds = () if self.bounds is None else self.bounds[row].tolist()
        return {unit: bound for unit, bound in zip(self.units, bounds, strict=False) if not isnan(bound)}

    def to_pandas(self, side: Literal["prompt", "response"] = "prompt") -> pd.DataFrame:
        """The scores with the explained spans as rows and the units, or the response's own tokens, as columns.

        Raises:
            ExegeteError: the response's tokens have no scores.
        """
        import pandas as pd

        if side == "prompt":
            return pd.DataFrame(self.scores, index=list(self.row_texts), columns=list(self.units))
        if self.prefix is None:
            raise ExegeteError("the response's own tokens have no scores: explain with attribute_target")
        return pd.DataFrame(self.prefix, index=list(self.row_texts), columns=list(self.exchange.tokens))

    def to_latex(self, caption: str = "", label: str = "") -> str:
        """A heat map of the scores as a LaTeX table."""
        return generated_view.render_heat_map_latex(self, caption, label)

    def to_row(self) -> dict[str, Any]:
        """Plain values by column name, as stored; `params` are JSON text."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "exchange"}
        texts = {name: getattr(self.exchange, name) for name in _FROM_EXCHANGE}
        return own | texts | {"params": json.dumps(self.params, ensure_ascii=False)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> GeneratedAttribution:
        """The attribution of a stored row: the inverse of `to_row`."""
        texts = {name: _to_tuples(row[name]) for name in _FROM_EXCHANGE}
        own = {name: value for name, value in row.items() if name not in texts}
        scores = np.array(row["scores"], np.float32).reshape(len(row["spans"]), len(row["units"]))
        return cls(**own | {"params": json.loads(row["params"]), "scores": scores, "exchange": Exchange(**texts)})

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON can hold."""
        return {name: replace_non_finite(value) for name, value in self.to_row().items()} | {"params": self.params}

    def summary(self) -> str:
        """One line: the response, and the best units."""
        best = ", ".join(f"{unit[:40]} {score:+.3g}" for unit, score in self.top())
        return f"{self.index}: {self.response[:60]!r}: {best}"

    def _sentences(self) -> list[tuple[Extent, list[int]]]:
        """Each sentence with rows inside it and the numbers of these; other rows for themselves."""
        found: dict[Extent, list[int]] = {}
        sentences = self.exchange.spans("sentences")
        for row, (start, end) in enumerate(self.spans):
            inside = (each for each in sentences if each[0] <= start and end <= each[1])
            found.setdefault(next(inside, (start, end)), []).append(row)
        return list(found.items())


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(each) for each in value) if isinstance(value, list | tuple) else value
