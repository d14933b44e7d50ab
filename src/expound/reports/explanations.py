"""Explanations as plain values: a table of targets × units per example, its views, and its files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expound.data.provenance import to_json_value
from expound.data.registry import read_fields
from expound.errors import ExpoundError
from expound.reports import storage
from expound.reports.highlighted import highlight
from expound.reports.records import (
    Citation,
    Exchange,
    Output,
    Target,
    Unit,
    find_groups,
    find_margins,
    list_citations,
    sum_targets,
)
from expound.reports.text import shorten

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explanation:
    """One example explained by one method: a table of scores of T targets × U units.

    Attributes:
        targets: [T] the outputs that are explained: a class, a value, an answer, a tag, or spans of a response.
        units: [U] the parts of the input that have scores, of the size `unit`.
        scores: [T, U].
        unit: `token`, `word`, `sentence`, `paragraph`, `source`, `message`, `tool_result`, `thought`, `span`, `patch`.
        texts: the one or two texts, or the visible texts of a prompt; empty for an image or token ids.
        method: the explainer's id; `params`: its parameters, JSON values only.
        prediction: what the model predicts; None for generated text.
        signed: whether negative scores are evidence against the target.
        truncated: whether the input was cut to the model's length.
        index: the position in the input.
        rest: [T] the scores of the input that belong to no unit: white space between words, texts that are no source,
            special tokens. Summing units up moves scores between both, so that their sum stays.
        bias: what of the output belongs to no position, for methods that separate it.
        convergence_delta: what the scores miss to sum to the output's change, for methods with that property.
        bounds: [T, U] lower bounds on the fall of a target's log-probability without a unit; NaN for units without one.
        interactions: the strongest (unit, unit, value), for methods that compute them.
        tokens: [L] the model's tokens, special ones included, if their scores are known.
        token_scores: [T, L] of the tokens; special ones score 0. `special`: [L] whether a token is special.
        layers: [layers, L] the tokens' scores in each layer, for methods that have them.
        exchange: the prompt and the response, for generated text.
        response_scores: [T, R] of the response's own tokens; NaN for tokens that come after a target.
        image_shape: rows and columns of an image's patches.
        metadata: facts about the example, as its `id`; JSON values only.

    Raises:
        ExpoundError: lengths that disagree, or `params` or `metadata` that JSON cannot hold.
    """

    targets: tuple[Target, ...]
    units: tuple[Unit, ...]
    scores: NDArray[np.float32]
    unit: str
    method: str
    texts: tuple[str, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    prediction: Target | None = None
    signed: bool = True
    truncated: bool = False
    index: int = 0
    rest: NDArray[np.float32] | None = None
    bias: float | None = None
    convergence_delta: float | None = None
    bounds: NDArray[np.float32] | None = None
    interactions: tuple[tuple[int, int, float], ...] = ()
    tokens: tuple[Unit, ...] = ()
    token_scores: NDArray[np.float32] | None = None
    special: tuple[bool, ...] = ()
    layers: NDArray[np.float32] | None = None
    exchange: Exchange | None = None
    response_scores: NDArray[np.float32] | None = None
    image_shape: tuple[int, int] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {
            "targets": to_targets(self.targets),
            "units": to_units(self.units, "units"),
            "texts": tuple(self.texts),
            "params": to_json_values(self.params),
            "prediction": None if self.prediction is None else to_targets([self.prediction])[0],
            "interactions": tuple((int(one), int(other), float(value)) for one, other, value in self.interactions),
            "tokens": to_units(self.tokens, "tokens"),
            "special": tuple(bool(flag) for flag in self.special) or (False,) * len(self.tokens),
            "convergence_delta": None if self.convergence_delta is None else float(self.convergence_delta),
            "bias": None if self.bias is None else float(self.bias),
            "rest": None if self.rest is None else to_float_array(self.rest, "rest", 1),
            "image_shape": None if self.image_shape is None else tuple(int(side) for side in self.image_shape),
            "metadata": to_json_values(self.metadata),
        }
        for name in ("scores", "bounds", "token_scores", "layers", "response_scores"):
            value = getattr(self, name)
            plain[name] = None if value is None else to_float_array(value, name, 2)
        # The class is frozen, so conversion has to go around its own __setattr__.
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        check(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        return all(is_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        return hash((self.units, self.method, self.index))

    def __repr__(self) -> str:
        return f"Explanation({self.method}, {self.summary()})"

    def _repr_html_(self) -> str:
        return highlight.render_fragment([self])

    @property
    def target(self) -> Target:
        """The first target, which is the only one unless several spans of a response are explained."""
        return self.targets[0]

    @property
    def unit_texts(self) -> tuple[str, ...]:
        """The text of each unit, [U]."""
        return tuple(unit.text for unit in self.units)

    @property
    def target_texts(self) -> tuple[str, ...]:
        """The text of each target, [T]."""
        return tuple(target.text for target in self.targets)

    @property
    def response(self) -> str:
        """The generated text; empty for other tasks."""
        return self.exchange.response if self.exchange else ""

    @property
    def notes(self) -> list[str]:
        """What a reader should know about the input and the response, in words."""
        notes = ["input cut to the model's length"] if self.truncated else []
        repeated = self.metadata.get("repeated_sentences")
        if not repeated:
            return notes
        return [*notes, f"{repeated} repeated sentences are explained where they come first"]

    @property
    def content_scores(self) -> NDArray[np.float32]:
        """The scores [L'] of the first target's tokens that are not special.

        Raises:
            ExpoundError: the tokens' scores are not known.
        """
        if self.token_scores is None:
            raise ExpoundError(f"{self.method} was asked for scores of each {self.unit}: explain with unit='token'")
        scores: NDArray[np.float32] = self.token_scores[0][~np.asarray(self.special, dtype=bool)]
        return scores

    def top(self, k: int = 3, row: int | None = None) -> list[tuple[str, float]]:
        """Return the k units with the highest scores, best first, of one target or of the sum of all; ties in order."""
        scores = self.scores.sum(0) if row is None else self.scores[row]
        order = np.argsort(-scores, kind="stable")[:k]
        return [(self.units[unit].text, float(scores[unit])) for unit in order]

    def lower_bounds(self, row: int) -> dict[str, float]:
        """Return the lower bound on the fall of a target's log-probability without a unit, by unit that has one."""
        bounds = () if self.bounds is None else self.bounds[row].tolist()
        return {unit.text: bound for unit, bound in zip(self.units, bounds, strict=False) if not math.isnan(bound)}

    def summary(self) -> str:
        """Return one short line with the target or the response, and the best units."""
        best = ", ".join(f"{shorten(unit, 40)} {score:+.3g}" for unit, score in self.top())
        if self.exchange is not None:
            return f"{self.index}: {shorten(self.response, 60)!r}: {best}"
        return f"{self.index}: {shorten(self.target.text, 60)} ({self.target.probability:.2f}): {best}"

    def aggregate(self, unit: str | None = None, target: str | None = None) -> Explanation:
        """Return the explanation with scores summed over larger units or parts of the response.

        Args:
            unit: `token` (what words were summed from), `word`, `sentence`, `paragraph`, `message` or `source`.
            target: of generated text, "response" (the sum of all targets) or "sentences".

        Raises:
            ExpoundError: units that are smaller than the explanation's own, or that have no text.
        """
        result = self
        if unit == "token" and self.unit != "token":
            content = [place for place, special in enumerate(self.special) if not special]
            if self.token_scores is None:
                raise ExpoundError(f"the scores are of each {self.unit}: explain with unit='token'")
            result = self.with_units(tuple(self.tokens[at] for at in content), self.token_scores[:, content], "token")
        elif unit is not None and unit != self.unit:
            units, groups, of_space = find_groups(self, unit)
            # [U, G] membership: the product sums the scores of each group.
            scores = self.scores @ (np.asarray(groups)[:, None] == np.arange(len(units)))
            for place, group in of_space.items():
                assert self.token_scores is not None
                scores[:, group] += self.token_scores[:, place]
            result = self.with_units(units, scores, unit)
        return result if target is None else sum_targets(result, target)

    def with_units(self, units: tuple[Unit, ...], scores: NDArray[np.float32], unit: str) -> Explanation:
        """Return the explanation with other units, whose scores are [T, U]; what they lack of the sum is the rest."""
        rest = self.rest
        if rest is not None:
            rest = rest + self.scores.sum(1, dtype=np.float64) - scores.sum(1, dtype=np.float64)
        return replace(self, interactions=(), bounds=None, units=units, scores=scores, unit=unit, rest=rest)

    def margins(self, row: int = 0) -> dict[str, float]:
        """Return how much more than the user's request each tool's result and each source moves a target, per token.

        Raises:
            ExpoundError: the explanation is not one of a chat by `unit="message"`.
        """
        return find_margins(self, row)

    def citations(self, k: int = 2, *, unit: str = "source", target: str | None = "sentences") -> list[Citation]:
        """Return the k best sources of each sentence of the response (of each target that spans several sentences).

        A source's score is the sum over its units and the sentence's targets. Without sources the results of tools are
        cited, and without those all visible texts.

        Args:
            k: sources per sentence.
            unit: what is cited: sources, or larger units of them than those that were explained, as `paragraph`.
            target: as in `aggregate`; None: one citation per target.

        Raises:
            ExpoundError: no generated text is explained, or units that are larger than `unit`.
        """
        return list_citations(self, k, unit, target)

    def compare_to(self, other: Explanation) -> pd.DataFrame:
        """Return both explanations' scores side by side, a row per target and unit, each divided by its largest.

        Raises:
            ExpoundError: the explanations have other units or another number of targets.
        """
        if self.unit_texts != other.unit_texts or len(self.targets) != len(other.targets):
            raise ExpoundError(
                f"expected two explanations of the same units and targets, got units '{self.unit}' and "
                f"'{other.unit}': explain the same example, and aggregate() both to one unit"
            )
        frame = self.to_pandas(long=True)[["target", "unit"]]
        names = [self.method, other.method]
        if names[0] == names[1]:
            names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
        for name, item in zip(names, (self, other), strict=True):
            largest = np.abs(item.scores).max(1, keepdims=True, initial=0)
            scaled = np.divide(item.scores, largest, out=np.zeros_like(item.scores), where=largest > 0)
            frame[name] = scaled.ravel()
        return frame.assign(difference=frame[names[1]] - frame[names[0]])

    def to_pandas(self, side: Literal["input", "response"] = "input", *, long: bool = False) -> pd.DataFrame:
        """Return the scores with targets as rows and units, or a response's own tokens, as columns.

        `long`: a row per target and unit instead.

        Raises:
            ExpoundError: the response's tokens have no scores.
        """
        import pandas as pd

        if side == "response":
            if self.exchange is None or self.response_scores is None:
                raise ExpoundError("the response's own tokens have no scores: explain with attribute_target")
            tokens = list(self.exchange.tokens)
            return pd.DataFrame(self.response_scores, index=list(self.target_texts), columns=tokens)
        if not long:
            return pd.DataFrame(self.scores, index=list(self.target_texts), columns=list(self.unit_texts))
        rows = []
        for target, scores in zip(self.targets, self.scores.tolist(), strict=True):
            for unit, score in zip(self.units, scores, strict=True):
                about = {"index": self.index, "method": self.method, "target": target.text}
                place = {"unit": unit.text, "segment": unit.segment, "start": unit.start, "end": unit.end}
                rows.append(about | {"probability": target.probability} | place | {"score": score})
        columns = ("index", "method", "target", "probability", "unit", "segment", "start", "end", "score")
        return pd.DataFrame(rows, columns=columns)

    def plot(self, kind: str | None = None) -> Figure:
        """Return a matplotlib figure: `bars` of the strongest units, a `waterfall`, or a `heatmap` of targets × units.

        A waterfall adds the scores up to the model's output, so it needs a method with a convergence delta. Default:
        bars for one target, else a heat map.

        Raises:
            ExpoundError: another kind, or a waterfall of a method whose scores do not sum to the output.
        """
        from expound.reports.highlighted.plots import plot_explanation

        return plot_explanation(self, kind)

    def to_latex(self, caption: str = "", label: str = "") -> str:
        """Return a heat map of the scores as a LaTeX table (booktabs, and xcolor with option table)."""
        return highlight.render_latex(self, caption, label)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return a self-contained page with the example highlighted; also write it to `path` if given."""
        return Explanations([self]).to_html(path)

    def to_row(self) -> dict[str, Any]:
        """Return plain values by column name, as stored."""
        return storage.to_row(read_fields(self))

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Explanation:
        """Return the explanation of a stored row: the inverse of `to_row`."""
        values = storage.from_row(row)
        # A table of zero targets or units has lost its shape in the lists of a Parquet file.
        shape = (len(values["targets"]), len(values["units"]))
        return cls(**values | {"scores": np.array(values["scores"], np.float32).reshape(shape)})

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold; NaN and infinity become None. `from_row` reads them again."""
        values: dict[str, Any] = to_json_value(storage.to_records(read_fields(self)))
        return values


class Explanations(Sequence[Explanation]):
    """An immutable sequence of `Explanation`s; a slice is `Explanations` too.

    `config` describes their origin (model, revision, seed, …) in JSON values; it is saved and loaded with them.
    """

    def __init__(self, items: Iterable[Explanation] = (), config: Mapping[str, Any] | None = None) -> None:
        self._items: tuple[Explanation, ...] = tuple(items)
        self._config = to_json_values(config or {})

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the configuration that the explanations come from."""
        return to_json_values(self._config)

    @overload
    def __getitem__(self, index: int) -> Explanation: ...
    @overload
    def __getitem__(self, index: slice) -> Explanations: ...
    def __getitem__(self, index: int | slice) -> Explanation | Explanations:
        if isinstance(index, slice):
            return Explanations(self._items[index], self._config)
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._items)

    def __add__(self, other: Explanations) -> Explanations:
        """Return both, one after the other, with the part of the configuration that both share."""
        if not isinstance(other, Explanations):
            return NotImplemented
        shared = {key: value for key, value in self._config.items() if other._config.get(key) == value}
        return Explanations(self._items + other._items, shared)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Explanations) and self._items == other._items and self._config == other._config

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(item.method for item in self))
        return f"Explanations({len(self)} example{'' if len(self) == 1 else 's'}{', ' if methods else ''}{methods})"

    def _repr_html_(self) -> str:
        return highlight.render_fragment(self)

    def aggregate(self, unit: str | None = None, target: str | None = None) -> Explanations:
        """Return the explanations with scores summed over larger units or targets, see `Explanation.aggregate`."""
        return Explanations([item.aggregate(unit, target) for item in self], self._config)

    def save(self, directory: str | Path, config: Mapping[str, Any] | None = None) -> Path:
        """Write `explanations.parquet` and `config.json`, and return the directory.

        A file appears under its name only when it is complete. `config` replaces this object's own.

        Raises:
            ExpoundError: the directory cannot be written to.
        """
        stored = self._config if config is None else to_json_values(config)
        return storage.save(Path(directory), [item.to_row() for item in self], stored)

    @classmethod
    def load(cls, directory: str | Path) -> Explanations:
        """Return what `save` wrote, unchanged. The files cannot run code.

        Raises:
            ExpoundError: files that are missing, damaged or of another version.
        """
        rows, config = storage.load(Path(directory))
        try:
            return cls([Explanation.from_row(row) for row in rows], config)
        except (TypeError, ValueError, AttributeError) as error:
            raise ExpoundError(f"{directory} holds damaged explanations ({error}); save them again") from error

    def to_dataset(self) -> Dataset:
        """Return a `datasets.Dataset` with the stored columns."""
        from datasets import Dataset

        return Dataset(storage.to_arrow_table([item.to_row() for item in self]))

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row per example, target and unit."""
        import pandas as pd

        frames = [item.to_pandas(long=True) for item in self]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_json(self) -> str:
        """Return a JSON list with one object per example; numbers that JSON lacks (NaN, infinity) become null."""
        return json.dumps([item.to_dict() for item in self], ensure_ascii=False, allow_nan=False)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return one self-contained page with every example highlighted; also write it to `path` if given."""
        page = highlight.render_page(self)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page


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
