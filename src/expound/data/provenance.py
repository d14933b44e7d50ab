"""Provenance of results: versions of libraries, and digests of data."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

from expound.data.atomic_files import atomic_file

LIBRARIES = ("expound", "torch", "transformers", "accelerate", "captum", "numpy", "datasets", "pyarrow")


def get_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that results depend on."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        found = _find_version(name)
        if found is not None:
            installed[name] = found
    return installed


@cache
def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def digest(value: Any) -> str:
    """Return a digest (16 hexadecimal digits) of a JSON-like value that does not depend on the order of keys."""
    # surrogatepass, because a value may hold text that was cut within a surrogate pair
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def digest_data(dataset: Dataset) -> str:
    """Return a digest of the values of a dataset."""
    import pyarrow as pa

    # one chunk and no metadata: equal rows give equal bytes, however the dataset was loaded
    table = dataset.with_format("arrow")[:].combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
        stream.write_table(table.replace_schema_metadata(None))
    return blake2b(sink.getvalue(), digest_size=8).hexdigest()


def summarize_data(dataset: Dataset) -> dict[str, Any]:
    """Return the number of `rows` of a dataset and the `digest` of its values, for a run's record."""
    return {"rows": len(dataset), "digest": digest_data(dataset)}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value as indented JSON, atomically; NaN and infinity become null."""
    with atomic_file(path) as fresh:
        text = json.dumps(to_json_value(value), indent=2, ensure_ascii=False, allow_nan=False)
        fresh.write_text(text + "\n", encoding="utf-8")


def to_json_value(value: Any) -> Any:
    """Return the value as JSON types: keys become strings, arrays lists, NaN and infinity null, other types text."""
    if isinstance(value, Mapping):
        return {str(name): to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "tolist"):
        return to_json_value(value.tolist())
    return str(value)
