"""The attribution of generated text as plain values: one row per explained span of the response."""

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

_EXCHANGE_FIELDS = tuple(each.name for each in fields(Exchange))


class _CitationFields(NamedTuple):
    text: str
    sources: list[tuple[str, float]]


# A third field would break users who unpack a citation as (text, sources), so the bounds are an attribute.
class Citation(_CitationFields):
    """A part of the response, and the names of its sources with their scores, best first.

    `lower_bounds`: by source, the calibrated lower bound on the fall of the part's log-probability without it.
    """

    lower_bounds: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GeneratedAttribution:
    """Scores of the U units of a prompt for T explained spans of the R tokens of a model's response.

    Attributes:
        scores: [T, U].
        units: [U] words, sentences or names of sources, as `unit` says.
        unit_spans: [U] (text, start, end), in characters of the visible text of that number.
        spans: [T] (start, end), in tokens of the response.
        log_probs: [T] log-probabilities of the spans.
        exchange: the prompt and the response.
        signed: whether negative scores are evidence against a span.
        truncated: whether the prompt was cut to the model's length.
        index: the position in the input.
        bounds: [T, U] lower bounds on the fall of a span's log-probability without a unit; NaN for units without one.
        prefix: [T, R] scores of the response's own tokens; NaN for tokens that come after a span.

    Raises:
        ExegeteError: lengths that disagree, or `params` that JSON cannot hold.
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
        # The class is frozen, so conversion has to go around its own __setattr__.
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        shape = (len(self.spans), len(self.units))
        if self.scores.shape != shape or len(self.log_probs) != shape[0] or len(self.unit_spans) != shape[1]:
            raise ExegeteError(f"expected scores of {shape[0]} spans × {shape[1]} units, got {self.scores.shape}")
        if self.bounds is not None and self.bounds.shape != shape:
            raise ExegeteError(f"expected bounds of {shape[0]} spans × {shape[1]} units, got {self.bounds.shape}")
        expected = (shape[0], len(self.exchange.tokens))
        if self.prefix is not None and self.prefix.shape != expected:
            raise ExegeteError(
                f"expected a prefix of {expected[0]} spans × {expected[1]} tokens, got {self.prefix.shape}"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GeneratedAttribution):
            return NotImplemented
        return all(is_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        return hash((self.units, self.spans, self.method, self.index))

    def __repr__(self) -> str:
        return f"GeneratedAttribution({self.method}, {self.summary()})"

    def _repr_html_(self) -> str:
        return highlight.render_fragment([self])

    @property
    def prompt(self) -> str:
        """The whole text that the model read."""
        return self.exchange.prompt

    @property
    def response(self) -> str:
        """The text of the response."""
        return self.exchange.response

    @property
    def row_texts(self) -> tuple[str, ...]:
        """The text of each explained span, [T]."""
        return tuple(self.response[slice(*self.exchange.extent(span))] for span in self.spans)

    @property
    def places(self) -> tuple[Extent, ...]:
        """The characters of each unit in the prompt, [U] of (start, end)."""
        starts = [self.exchange.places[text][0] for text, _, _ in self.unit_spans]
        return tuple((at + start, at + end) for at, (_, start, end) in zip(starts, self.unit_spans, strict=True))

    def top(self, k: int = 3, row: int | None = None) -> list[tuple[str, float]]:
        """Return the k units with the highest scores, best first, of one row or of the sum of all rows."""
        scores = self.scores.sum(0) if row is None else self.scores[row]
        order = np.argsort(-scores, kind="stable")[:k]
        return [(self.units[unit], float(scores[unit])) for unit in order]

    def citations(self, k: int = 2) -> list[Citation]:
        """Return the k best sources of each sentence of the response (of each row that spans several sentences).

        A source's score is the sum over its units and the sentence's rows; without sources all visible texts count.
        """
        is_citable = np.array(self.exchange.is_source, dtype=bool)
        if not is_citable.any():
            is_citable[:] = True
        # [U, S] membership of units in texts; a product with it sums the scores of each text.
        unit_texts = np.array([text for text, _, _ in self.unit_spans], dtype=int)
        scores_by_text = self.scores @ (unit_texts[:, None] == np.arange(len(is_citable)))
        citations = []
        for span, rows in self._group_rows_by_sentence():
            scores = np.where(is_citable, scores_by_text[rows].sum(0), -np.inf)
            best = np.argsort(-scores, kind="stable")[: min(k, int(is_citable.sum()))]
            sources = [(self.exchange.names[text], float(scores[text])) for text in best]
            citation = Citation(self.response[slice(*self.exchange.extent(span))], sources)
            # Bounds hold for single spans: they cannot be added up over several rows.
            if len(rows) == 1:
                bounds = self.lower_bounds(rows[0])
                citation.lower_bounds = {name: bounds[name] for name, _ in sources if name in bounds}
            citations.append(citation)
        return citations

    def lower_bounds(self, row: int) -> dict[str, float]:
        """Return the lower bound on the fall of a row's log-probability without a unit, by unit that has one."""
        bounds = () if self.bounds is None else self.bounds[row].tolist()
        return {unit: bound for unit, bound in zip(self.units, bounds, strict=False) if not isnan(bound)}

    def to_pandas(self, side: Literal["prompt", "response"] = "prompt") -> pd.DataFrame:
        """Return the scores with spans as rows and units, or the response's own tokens, as columns.

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
        """Return a heat map of the scores as a LaTeX table."""
        return generated_view.render_heat_map_latex(self, caption, label)

    def to_row(self) -> dict[str, Any]:
        """Return plain values by column name, as stored; `params` are JSON text."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "exchange"}
        texts = {name: getattr(self.exchange, name) for name in _EXCHANGE_FIELDS}
        return own | texts | {"params": json.dumps(self.params, ensure_ascii=False)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> GeneratedAttribution:
        """Return the attribution of a stored row: the inverse of `to_row`."""
        texts = {name: _to_tuples(row[name]) for name in _EXCHANGE_FIELDS}
        own = {name: value for name, value in row.items() if name not in texts}
        # A table of zero spans or units has lost its shape in the lists of a Parquet file.
        scores = np.array(row["scores"], np.float32).reshape(len(row["spans"]), len(row["units"]))
        return cls(**own | {"params": json.loads(row["params"]), "scores": scores, "exchange": Exchange(**texts)})

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold; NaN and infinity become None."""
        return {name: replace_non_finite(value) for name, value in self.to_row().items()} | {"params": self.params}

    def summary(self) -> str:
        """Return one line with the response and its best units."""
        best = ", ".join(f"{unit[:40]} {score:+.3g}" for unit, score in self.top())
        return f"{self.index}: {self.response[:60]!r}: {best}"

    def _group_rows_by_sentence(self) -> list[tuple[Extent, list[int]]]:
        """Return each sentence that contains rows, with their numbers; a row in no sentence is its own group."""
        groups: dict[Extent, list[int]] = {}
        sentences = self.exchange.spans("sentences")
        for row, span in enumerate(self.spans):
            key = span
            for sentence in sentences:
                if sentence[0] <= span[0] and span[1] <= sentence[1]:
                    key = sentence
                    break
            groups.setdefault(key, []).append(row)
        return list(groups.items())


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list | tuple) else value
