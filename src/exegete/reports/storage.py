"""Storage of attributions in a directory: a Parquet file of plain columns and a JSON file with their configuration."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from exegete.data.atomic_files import remove_abandoned, temporary_path
from exegete.data.provenance import get_versions
from exegete.errors import ExegeteError

FORMAT_VERSION = 1
DATA, CONFIG = "attributions.parquet", "config.json"
TEXTS = pa.list_(pa.string())
SPANS = pa.list_(pa.list_(pa.int64()))


@dataclass(frozen=True)
class StorageFormat:
    """A file format: its name and columns, those that may be null, and those that files of older versions lack."""

    name: str
    schema: pa.Schema
    optional: frozenset[str] = frozenset()
    added_later: frozenset[str] = frozenset()


ATTRIBUTIONS = StorageFormat(
    "exegete-attributions",
    pa.schema(
        {
            "index": pa.int64(),
            "method": pa.string(),
            "texts": TEXTS,
            "tokens": TEXTS,
            "scores": pa.list_(pa.float32()),
            "special": pa.list_(pa.bool_()),
            "words": TEXTS,
            "word_scores": pa.list_(pa.float32()),
            "word_spans": SPANS,
            "target": pa.string(),
            "target_label": pa.string(),
            "prediction": pa.string(),
            "prediction_label": pa.string(),
            "probability": pa.float64(),
            "delta": pa.float64(),
            "signed": pa.bool_(),
            "truncated": pa.bool_(),
            "layers": pa.list_(pa.list_(pa.float32())),
            "image_shape": pa.list_(pa.int64()),
            "params": pa.string(),
            "pairs": pa.list_(pa.list_(pa.float64())),
            "about": pa.list_(pa.int64()),
        }
    ),
    frozenset({"delta", "layers", "image_shape", "pairs", "about"}),
    frozenset({"pairs", "about"}),
)
GENERATED = StorageFormat(
    "exegete-generated-attributions",
    pa.schema(
        {
            "index": pa.int64(),
            "method": pa.string(),
            "unit": pa.string(),
            "prompt": pa.string(),
            "names": TEXTS,
            "places": SPANS,
            "is_source": pa.list_(pa.bool_()),
            "response": pa.string(),
            "tokens": TEXTS,
            "token_spans": SPANS,
            "spans": SPANS,
            "log_probs": pa.list_(pa.float32()),
            "units": TEXTS,
            "unit_spans": SPANS,
            "scores": pa.list_(pa.list_(pa.float32())),
            "signed": pa.bool_(),
            "truncated": pa.bool_(),
            "params": pa.string(),
            "bounds": pa.list_(pa.list_(pa.float32())),
            "prefix": pa.list_(pa.list_(pa.float32())),
        }
    ),
    frozenset({"bounds", "prefix"}),
    frozenset({"bounds", "prefix"}),
)
FORMATS = {ATTRIBUTIONS.name: ATTRIBUTIONS, GENERATED.name: GENERATED}


def to_arrow_table(rows: Sequence[Mapping[str, Any]], storage_format: StorageFormat = ATTRIBUTIONS) -> pa.Table:
    """Return the rows as an Arrow table of plain columns. Raises ExegeteError for text that is not Unicode."""
    columns = {name: [_to_plain(row[name]) for row in rows] for name in storage_format.schema.names}
    try:
        return pa.table(columns, schema=storage_format.schema)
    # A lone surrogate, which a Python string may hold, has no UTF-8 form.
    except (UnicodeEncodeError, pa.ArrowException) as error:
        raise ExegeteError(f"the attributions cannot be stored: {error}") from error


def _to_plain(value: Any) -> Any:
    # Arrow converts lists of lists, but neither tuples of tuples nor two-dimensional arrays.
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return list(value) if hasattr(value, "ndim") else value


def save(
    directory: Path,
    rows: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    storage_format: StorageFormat = ATTRIBUTIONS,
) -> Path:
    """Write both files and return the directory. Each file appears under its name only when it is complete."""
    content = to_arrow_table(rows, storage_format)
    temporary = temporary_path(directory.absolute())
    try:
        temporary.mkdir(parents=True)
        pq.write_table(content, temporary / DATA, compression="zstd")
        description = _describe_data(temporary / DATA, len(rows), config, storage_format)
        (temporary / CONFIG).write_text(description, encoding="utf-8")
        _publish(temporary, directory)
        remove_abandoned(directory.absolute())
    except OSError as error:
        raise ExegeteError(f"cannot write attributions to {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _describe_data(data: Path, rows: int, config: Mapping[str, Any], storage_format: StorageFormat) -> str:
    head = {"format": storage_format.name, "format_version": FORMAT_VERSION, "rows": rows, "sha256": _digest_file(data)}
    return json.dumps(head | {"versions": get_versions(), "config": dict(config)}, indent=2, ensure_ascii=False) + "\n"


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(temporary: Path, directory: Path) -> None:
    if not directory.exists():
        temporary.rename(directory)
        return
    # The directory may hold other files of the user. The digest in CONFIG, which is replaced last, lets a reader detect
    # a process that was killed between the two.
    for name in (DATA, CONFIG):
        os.replace(temporary / name, directory / name)


def load(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any], StorageFormat]:
    """Return the rows, the configuration and the format that `save` wrote. Raises ExegeteError for other files."""
    for name in (DATA, CONFIG):
        if not (directory / name).is_file():
            raise ExegeteError(
                f"{directory} holds no saved attributions: {name} is missing; give a directory from save()"
            )
    description = _read_description(directory / CONFIG)
    if _digest_file(directory / DATA) != description.get("sha256"):
        raise ExegeteError(
            f"{directory / DATA} is not the file that {CONFIG} describes: damaged or half-saved; save again"
        )
    storage_format = FORMATS[description["format"]]
    return _read_rows(directory / DATA, storage_format), dict(description["config"]), storage_format


def _read_description(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExegeteError(f"{path} is not readable JSON ({error}); save the attributions again") from error
    is_description = isinstance(content, dict) and content.get("format") in FORMATS
    if not is_description or not isinstance(content.get("config"), dict):
        raise ExegeteError(f"{path} does not describe saved attributions; give a directory from save()")
    if content.get("format_version") != FORMAT_VERSION:
        raise ExegeteError(f"{path} has format {content.get('format_version')}, this version reads {FORMAT_VERSION}")
    return dict(content)


def _read_rows(path: Path, storage_format: StorageFormat) -> list[dict[str, Any]]:
    try:
        content = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise ExegeteError(f"{path} is not a readable Parquet file ({error}); save the attributions again") from error
    names, wrong = [], []
    for field in storage_format.schema:
        if field.name in content.column_names:
            names.append(field.name)
            if not _fits(content.column(field.name), field, storage_format):
                wrong.append(field.name)
        # Files of older versions lack some columns; the record's defaults replace them.
        elif field.name not in storage_format.added_later:
            wrong.append(field.name)
    if wrong:
        raise ExegeteError(f"{path}: expected the columns of saved attributions; missing or of another type: {wrong}")
    rows: list[dict[str, Any]] = content.select(names).to_pylist()
    return rows


def _fits(column: pa.ChunkedArray, field: pa.Field, storage_format: StorageFormat) -> bool:
    return bool(column.type == field.type) and (field.name in storage_format.optional or column.null_count == 0)
