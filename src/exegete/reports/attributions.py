"""Attributions as plain values: `Attribution` of one example, `Attributions` of many, stored as Parquet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from exegete.errors import ExegeteError
from exegete.reports import storage
from exegete.reports.generated import GeneratedAttribution
from exegete.reports.highlighted import highlight
from exegete.reports.plain_values import is_equal, replace_non_finite, to_float_array, to_json_values, to_strings

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

Output = int | float | tuple[int, int]
"""An output of the model: a class id, a regression value, or the first and last position of an answer."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attribution:
    """One example of L positions and W words explained by one method.

    Attributes:
        tokens: [L] without padding.
        scores: [L]; special tokens score 0.
        words: [W]; empty if the task has no words.
        word_scores: [W].
        word_spans: [W] (side, start, end): side 0 or 1, in characters of `texts[side]`.
        texts: the one or two texts; empty for an image.
        target: the output that is explained, `target_label` its name.
        prediction: what the model predicts, `prediction_label` its name.
        probability: of the target.
        method: the explainer's name; `params`: its parameters, JSON values only.
        delta: the convergence delta, for methods that have one.
        truncated: whether the input was cut to the model's length.
        layers: [layers, L] the scores of each layer, for methods that have them.
        index: the position in the input.
        special: [L] whether a token is special.
        image_shape: rows and columns of an image's patches, which are the positions that are not special.
        signed: whether negative scores are evidence against the target.
        pairs: the strongest interactions (unit, unit, value) of words (of positions if there are no words), for methods
            that compute them.
        about: (side, start, end) of the stretch of text that the target is about, for targets that name one.

    Raises:
        ExegeteError: lengths that disagree, or `params` that JSON cannot hold.
    """

    STORAGE_FORMAT: ClassVar[storage.StorageFormat] = storage.ATTRIBUTIONS
    tokens: tuple[str, ...]
    scores: NDArray[np.float32]
    words: tuple[str, ...]
    word_scores: NDArray[np.float32]
    word_spans: tuple[tuple[int, int, int], ...]
    texts: tuple[str, ...]
    target: Output
    target_label: str
    prediction: Output
    prediction_label: str
    probability: float
    method: str
    params: dict[str, Any] = field(default_factory=dict)
    delta: float | None = None
    truncated: bool = False
    layers: NDArray[np.float32] | None = None
    index: int = 0
    special: tuple[bool, ...] = ()
    image_shape: tuple[int, int] | None = None
    signed: bool = True
    pairs: tuple[tuple[int, int, float], ...] = ()
    about: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        plain = {
            "tokens": to_strings(self.tokens, "tokens"),
            "scores": to_float_array(self.scores, "scores", 1),
            "words": to_strings(self.words, "words"),
            "word_scores": to_float_array(self.word_scores, "word_scores", 1),
            "word_spans": tuple(tuple(int(number) for number in span) for span in self.word_spans),
            "texts": to_strings(self.texts, "texts"),
            "target": _to_output(self.target, "target"),
            "prediction": _to_output(self.prediction, "prediction"),
            "probability": float(self.probability),
            "params": to_json_values(self.params),
            "delta": None if self.delta is None else float(self.delta),
            "truncated": bool(self.truncated),
            "layers": None if self.layers is None else to_float_array(self.layers, "layers", 2),
            "index": int(self.index),
            "special": tuple(bool(flag) for flag in self.special) or (False,) * len(self.tokens),
            "image_shape": None if self.image_shape is None else tuple(int(side) for side in self.image_shape),
            "signed": bool(self.signed),
            "pairs": tuple((int(one), int(other), float(value)) for one, other, value in self.pairs or ()),
            "about": None if self.about is None else tuple(int(number) for number in self.about),
        }
        # The class is frozen, so conversion has to go around its own __setattr__.
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        _check(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attribution):
            return NotImplemented
        return all(is_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        return hash((self.tokens, self.method, self.index))

    def __repr__(self) -> str:
        return f"Attribution({self.method}, {self.summary()})"

    def _repr_html_(self) -> str:
        return highlight.render_fragment([self])

    def top(self, k: int = 3) -> list[tuple[str, float]]:
        """Return the k words with the highest scores, best first (tokens if there are no words); ties in order."""
        units, scores = (self.words, self.word_scores) if self.words else (self.tokens, self.scores)
        order = np.argsort(-scores, kind="stable")[:k]
        return [(units[position], float(scores[position])) for position in order]

    def to_row(self) -> dict[str, Any]:
        """Return plain values by column name, as stored; `target`, `prediction` and `params` are JSON text."""
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        return row | {name: json.dumps(row[name], ensure_ascii=False) for name in _JSON_COLUMNS}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Attribution:
        """Return the attribution of a stored row: the inverse of `to_row`."""
        values = dict(row) | {name: json.loads(row[name]) for name in _JSON_COLUMNS}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold; NaN and infinity become None."""
        return {each.name: replace_non_finite(getattr(self, each.name)) for each in fields(self)}

    def summary(self) -> str:
        """Return one line with the target, its probability and the best units."""
        best = ", ".join(f"{unit} {score:+.3g}" for unit, score in self.top())
        return f"{self.index}: {self.target_label} ({self.probability:.2f}): {best}"


ITEM_TYPES: Mapping[str, type[Attribution | GeneratedAttribution]] = {
    Attribution.STORAGE_FORMAT.name: Attribution,
    GeneratedAttribution.STORAGE_FORMAT.name: GeneratedAttribution,
}
Item = TypeVar("Item", bound=Attribution | GeneratedAttribution, default=Attribution)


class Attributions(Sequence[Item]):
    """An immutable sequence of `Attribution`s, or of `GeneratedAttribution`s; a slice is `Attributions` too.

    `config` describes their origin (model, revision, seed, …) in JSON values; it is saved and loaded with them.
    """

    def __init__(self, items: Iterable[Item] = (), config: Mapping[str, Any] | None = None) -> None:
        self._items: tuple[Item, ...] = tuple(items)
        if len({type(item) for item in self._items}) > 1:
            raise ExegeteError("expected attributions of one type: those of generated text cannot be mixed with others")
        self._config = to_json_values(config or {})

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the configuration that the attributions come from."""
        return to_json_values(self._config)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Attributions[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Attributions[Item]:
        if isinstance(index, slice):
            return Attributions(self._items[index], self._config)
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __add__(self, other: Attributions[Item]) -> Attributions[Item]:
        """Return both, one after the other, with the part of the configuration that both share."""
        if not isinstance(other, Attributions):
            return NotImplemented
        shared = {key: value for key, value in self._config.items() if other._config.get(key) == value}
        return Attributions(self._items + other._items, shared)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributions) and self._items == other._items and self._config == other._config

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(item.method for item in self))
        return f"Attributions({len(self)} example{'' if len(self) == 1 else 's'}{', ' if methods else ''}{methods})"

    @property
    def _storage_format(self) -> storage.StorageFormat:
        return self[0].STORAGE_FORMAT if len(self) else storage.ATTRIBUTIONS

    def _repr_html_(self) -> str:
        return highlight.render_fragment(self)

    def save(self, directory: str | Path, config: Mapping[str, Any] | None = None) -> Path:
        """Write `attributions.parquet` and `config.json`, and return the directory.

        A file appears under its name only when it is complete. `config` replaces this object's own.

        Raises:
            ExegeteError: the directory cannot be written to.
        """
        stored = self._config if config is None else to_json_values(config)
        return storage.save(Path(directory), [item.to_row() for item in self], stored, self._storage_format)

    @classmethod
    def load(cls, directory: str | Path) -> Attributions[Any]:
        """Return what `save` wrote, unchanged. The files cannot run code.

        Raises:
            ExegeteError: files that are missing, damaged or of another format.
        """
        rows, config, storage_format = storage.load(Path(directory))
        try:
            items: list[Any] = [ITEM_TYPES[storage_format.name].from_row(row) for row in rows]
            return cls(items, config)
        except (TypeError, ValueError) as error:
            raise ExegeteError(f"{directory} holds damaged attributions ({error}); save them again") from error

    def to_dataset(self) -> Dataset:
        """Return a `datasets.Dataset` with the stored columns."""
        from datasets import Dataset

        return Dataset(storage.to_arrow_table([item.to_row() for item in self], self._storage_format))

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with the stored columns, one row per example."""
        frame: pd.DataFrame = storage.to_arrow_table([item.to_row() for item in self], self._storage_format).to_pandas()
        return frame

    def to_json(self) -> str:
        """Return a JSON list with one object per example; numbers that JSON lacks (NaN, infinity) become null."""
        return json.dumps([item.to_dict() for item in self], ensure_ascii=False, allow_nan=False)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return one self-contained page with every example highlighted; also write it to `path` if given."""
        page = highlight.render_page(self)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page


_JSON_COLUMNS = ("target", "prediction", "params")


def _to_output(value: Any, name: str) -> Output:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        return int(value[0]), int(value[1])
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ExegeteError(f"{name}: expected a class id, a number or a pair (start, end), got {value!r}")


def _check(item: Attribution) -> None:
    positions, words = len(item.tokens), len(item.words)
    lengths = {
        "scores": (len(item.scores), positions),
        "special": (len(item.special), positions),
        "layers": (item.layers.shape[1] if item.layers is not None else positions, positions),
        "word_scores": (len(item.word_scores), words),
        "word_spans": (len(item.word_spans) or words, words),
    }
    for name, (got, expected) in lengths.items():
        if got != expected:
            raise ExegeteError(f"{name}: expected {expected} entries, one per {_unit_name(name)}, got {got}")
    if item.layers is not None and not len(item.layers):
        raise ExegeteError("layers: expected at least one layer, got none; leave it out instead")
    if any(len(span) != 3 for span in item.word_spans):
        raise ExegeteError("word_spans: expected (side, start, end) for each word")
    if any(not 0 <= side < len(item.texts) for side, _, _ in item.word_spans):
        raise ExegeteError(f"word_spans: expected a side below {len(item.texts)}, the number of texts")
    units = range(words or positions)
    if any(one not in units or other not in units for one, other, _ in item.pairs):
        raise ExegeteError(f"pairs: expected units below {len(units)}, got {item.pairs}")
    _check_grid(item)


def _check_grid(item: Attribution) -> None:
    patches = len(item.tokens) - sum(item.special)
    if item.image_shape is not None and (len(item.image_shape) != 2 or math.prod(item.image_shape) != patches):
        raise ExegeteError(f"image_shape: expected rows × columns = {patches} patches, got {item.image_shape}")


def _unit_name(name: str) -> str:
    return "word" if name.startswith("word") else "token"
