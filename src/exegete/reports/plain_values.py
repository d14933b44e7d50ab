"""Conversion of array-like and sequence values to plain ones that a record keeps, compares and stores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exegete.errors import ExegeteError


def to_float_array(values: ArrayLike, name: str, ndim: int) -> NDArray[np.float32]:
    """Return a read-only copy of `values` with `ndim` dimensions.

    Raises:
        ExegeteError: values that are not numbers, or another number of dimensions; `name` is used in the message.
    """
    try:
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"{name}: expected numbers, got {values!r}") from error
    if array.ndim != ndim:
        raise ExegeteError(f"{name}: expected {ndim} dimension{'s'[: ndim - 1]}, got shape {array.shape}")
    # Records are hashable and compared by value, so their arrays must not change.
    array.setflags(write=False)
    return array


def to_json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy as JSON reads it back. Raises ExegeteError when JSON cannot hold a value."""
    try:
        # Encoding once here turns tuples into lists, so that a saved and loaded record equals the original.
        copy: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"expected values that JSON can hold, got {values!r} ({error})") from error
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


def replace_non_finite(value: Any) -> Any:
    """Return the value with arrays as lists, and NaN and infinity, which JSON lacks, as None."""
    if isinstance(value, np.ndarray):
        return replace_non_finite(value.tolist())
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    if isinstance(value, dict):
        return {name: replace_non_finite(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
