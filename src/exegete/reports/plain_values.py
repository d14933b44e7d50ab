"""Values of any array or sequence type as plain ones that a record keeps, compares and stores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exegete.errors import ExegeteError


def to_float_array(values: ArrayLike, name: str, ndim: int) -> NDArray[np.float32]:
    """An array of its own that cannot be written to, with so many dimensions."""
    try:
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"{name}: expected numbers, got {values!r}") from error
    if array.ndim != ndim:
        raise ExegeteError(f"{name}: expected {ndim} dimension{'s'[: ndim - 1]}, got shape {array.shape}")
    array.setflags(write=False)
    return array


def to_strings(values: Iterable[str], name: str) -> tuple[str, ...]:
    """A tuple of strings. Raises ExegeteError for anything else."""
    plain = tuple(values)
    if not all(isinstance(value, str) for value in plain):
        raise ExegeteError(f"{name}: expected strings, got {plain!r}")
    return plain


def to_json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON gives them back. Raises ExegeteError where it cannot hold them."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"expected values that JSON can hold, got {values!r} ({error})") from error
    return plain


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, NaN to itself too, and of one type."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def replace_non_finite(value: Any) -> Any:
    """Arrays as lists; numbers that JSON lacks (NaN, infinity) as None."""
    if isinstance(value, np.ndarray):
        return replace_non_finite(value.tolist())
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
