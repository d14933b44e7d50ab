"""Rows of attributions in a directory: a Parquet file of plain columns, and a JSON file of where they come from."""

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
from exegete.data.provenance import versions
from exegete.errors import ExegeteError

FORMAT_VERSION = 1
DATA, CONFIG = "attributions.parquet", "config.json"
TEXTS = pa.list_(pa.string())
SPANS = pa.list_(pa.list_(pa.int64()))


@dataclass(frozen=True)
class StorageFormat:
    """A kind of rows: the name of their format, their columns, those that a row may lack, and those of older files."""

    name: str
    schema: pa.Schema
    optional: frozenset[str] = frozenset()
    newer: frozenset[str] = frozenset()


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
FORMATS = {kind.name: kind for kind in (ATTRIBUTIONS, GENERATED)}


def to_arrow_table(rows: Sequence[Mapping[str, Any]], kind: StorageFormat = ATTRIBUTIONS) -> pa.Table:
    """The rows as an Arrow table of plain columns; raises `ExegeteError` for text that is not Unicode."""
    columns = {name: [_to_plain(row[name]) for row in rows] for name in kind.schema.names}
    try:
        return pa.table(columns, schema=kind.schema)
    except (UnicodeEncodeError, pa.ArrowException) as error:
        raise ExegeteError(f"the attributions cannot be stored: {error}") from error


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return list(value) if hasattr(value, "ndim") else value


def save(
    directory: Path, rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], kind: StorageFormat = ATTRIBUTIONS
) -> Path:
    """Write both files; a reader never sees half of one. Returns the directory."""
    content = to_arrow_table(rows, kind)
    fresh = temporary_path(directory.absolute())
    try:
        fresh.mkdir(parents=True)
        pq.write_table(content, fresh / DATA, compression="zstd")
        (fresh / CONFIG).write_text(_describe_data(fresh / DATA, len(rows), config, kind), encoding="utf-8")
        _publish(fresh, directory)
        remove_abandoned(directory.absolute())
    except OSError as error:
        raise ExegeteError(f"cannot write attributions to {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return directory


def _describe_data(data: Path, rows: int, config: Mapping[str, Any], kind: StorageFormat) -> str:
    head = {"format": kind.name, "format_version": FORMAT_VERSION, "rows": rows, "sha256": _digest_file(data)}
    return json.dumps(head | {"versions": versions(), "config": dict(config)}, indent=2, ensure_ascii=False) + "\n"


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(fresh: Path, directory: Path) -> None:
    if not directory.exists():
        fresh.rename(directory)
        return
    for name in (DATA, CONFIG):
        os.replace(fresh / name, directory / name)


def load(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any], StorageFormat]:
    """The rows, the configuration and the kind that `save` wrote; raises `ExegeteError` for anything else."""
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
    kind = FORMATS[description["format"]]
    return _read_rows(directory / DATA, kind), dict(description["config"]), kind


def _read_description(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExegeteError(f"{path} is not readable JSON ({error}); save the attributions again") from error
    if not isinstance(found, dict) or found.get("format") not in FORMATS or not isinstance(found.get("config"), dict):
        raise ExegeteError(f"{path} does not describe saved attributions; give a directory from save()")
    if found.get("format_version") != FORMAT_VERSION:
        raise ExegeteError(f"{path} has format {found.get('format_version')}, this version reads {FORMAT_VERSION}")
    return found


def _read_rows(path: Path, kind: StorageFormat) -> list[dict[str, Any]]:
    try:
        content = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise ExegeteError(f"{path} is not a readable Parquet file ({error}); save the attributions again") from error
    there = [one for one in kind.schema if one.name in content.column_names or one.name not in kind.newer]
    wrong = [
        one.name for one in there if one.name not in content.column_names or not _has_expected_type(content, one, kind)
    ]
    if wrong:
        raise ExegeteError(f"{path}: expected the columns of saved attributions; missing or of another type: {wrong}")
    rows: list[dict[str, Any]] = content.select([one.name for one in there]).to_pylist()
    return rows


def _has_expected_type(content: pa.Table, expected: pa.Field, kind: StorageFormat) -> bool:
    column = content.column(expected.name)
    return bool(column.type == expected.type) and (expected.name in kind.optional or column.null_count == 0)
