"""Storage of explanations in a directory: a Parquet file of plain columns and a JSON file with their configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from expound.data.atomic_files import atomic_file
from expound.data.provenance import get_versions
from expound.errors import ExpoundError
from expound.reports.records import Exchange, Part

FORMAT, FORMAT_VERSION = "expound-explanations", 3
DATA, CONFIG = "explanations.parquet", "config.json"
TEXTS, SPANS, TABLE = pa.list_(pa.string()), pa.list_(pa.list_(pa.int64())), pa.list_(pa.list_(pa.float32()))
UNITS = pa.list_(pa.struct({"text": pa.string(), "segment": pa.int64(), "start": pa.int64(), "end": pa.int64()}))
TARGET = pa.struct(
    {"text": pa.string(), "value": pa.string(), "probability": pa.float64(), "log_prob": pa.float64()}
    | {"output": pa.float64(), "place": pa.list_(pa.int64())}
)
PARTS = pa.list_(pa.struct({"kind": pa.string(), "start": pa.int64(), "end": pa.int64()}))
EXCHANGE = pa.struct(
    {"prompt": pa.string(), "names": TEXTS, "places": SPANS, "kinds": TEXTS}
    | {"response": pa.string(), "tokens": TEXTS, "token_spans": SPANS, "parts": PARTS}
)
COLUMNS: Mapping[str, tuple[pa.DataType, str]] = {
    "index": (pa.int64(), "the example's number, from 0"),
    "method": (pa.string(), "the explainer"),
    "params": (pa.string(), "its parameters, as JSON"),
    "texts": (TEXTS, "the text, its two texts, or the visible texts of a prompt"),
    "targets": (pa.list_(TARGET), "the T explained outputs: name, value as JSON (class, number, span), probability, …"),
    "prediction": (TARGET, "what the model predicts; null for generated text"),
    "unit": (
        pa.string(),
        "the size of the units: token, word, sentence, paragraph, source, message, tool_result, thought, span, patch",
    ),
    "units": (
        UNITS,
        "the U parts with scores: text, and segment (number of the text, -1 without), start and end in it",
    ),
    "scores": (TABLE, "T × U scores"),
    "rest": (pa.list_(pa.float32()), "T scores of the input that belong to no unit, as white space between words"),
    "bias": (pa.float64(), "what of the output belongs to no position"),
    "bounds": (TABLE, "T × U lower bounds on the fall of a target's log-probability without a unit"),
    "interactions": (
        pa.list_(pa.struct({"one": pa.int64(), "other": pa.int64(), "value": pa.float64()})),
        "the strongest pairs of units and what they add together",
    ),
    "tokens": (UNITS, "the L tokens of the model, special ones included, as units"),
    "token_scores": (TABLE, "T × L scores of the tokens; 0 for special ones"),
    "special": (pa.list_(pa.bool_()), "whether each token is special"),
    "layers": (TABLE, "layers × L scores of the tokens in each layer"),
    "exchange": (EXCHANGE, "generated text: the prompt with its visible texts, and the response with its R tokens"),
    "response_scores": (TABLE, "T × R scores of the response's own tokens"),
    "image_shape": (pa.list_(pa.int64()), "rows and columns of an image's patches"),
    "convergence_delta": (pa.float64(), "what the scores miss to sum to the output's change"),
    "signed": (pa.bool_(), "whether negative scores are evidence against the target"),
    "truncated": (pa.bool_(), "whether the input was cut to the model's length"),
    "metadata": (pa.string(), "facts about the example, as JSON"),
}
"""The type and meaning of each column of a stored explanation."""
REQUIRED = {
    "index",
    "method",
    "params",
    "texts",
    "targets",
    "unit",
    "units",
    "scores",
    "signed",
    "truncated",
    "metadata",
}
SCHEMA = pa.schema({name: kind for name, (kind, _) in COLUMNS.items()})


def to_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an explanation's fields as the plain values of a row; JSON is text."""
    row = to_records(values)
    targets = list(row["targets"])
    if row["prediction"]:
        targets.append(row["prediction"])
    for target in targets:
        target["value"] = json.dumps(target["value"])
    return row | {name: json.dumps(row[name], ensure_ascii=False) for name in ("params", "metadata")}


def to_records(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an explanation's fields with units, targets, interactions and exchange as mappings."""
    changes: dict[str, Any] = {}
    for name in ("targets", "units", "tokens"):
        changes[name] = [each._asdict() for each in values[name]]
    if values["exchange"] is not None:
        exchange = values["exchange"]
        changes["exchange"] = asdict(exchange) | {"parts": [part._asdict() for part in exchange.parts]}
    if values["prediction"] is not None:
        changes["prediction"] = values["prediction"]._asdict()
    names = ("one", "other", "value")
    changes["interactions"] = [dict(zip(names, pair, strict=True)) for pair in values["interactions"]]
    return dict(values) | changes


def from_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the explanation in a row, of a file or of `to_records`: the inverse of both."""
    values = {name: row[name] for name in COLUMNS if row.get(name) is not None}
    for name in ("params", "metadata"):
        if isinstance(values[name], str):
            values[name] = json.loads(values[name])
    values["targets"] = [_read_target(target) for target in values["targets"]]
    if "prediction" in values:
        values["prediction"] = _read_target(values["prediction"])
    for name in ("units", "tokens", "interactions"):
        values[name] = [tuple(each.values()) for each in values.get(name, ())]
    if "exchange" in values:
        exchange = {name: _to_tuples(value) for name, value in values["exchange"].items()}
        values["exchange"] = Exchange(**exchange | {"parts": tuple(Part(**part) for part in exchange["parts"])})
    return values


def _read_target(target: Mapping[str, Any]) -> tuple[Any, ...]:
    fields = dict(target)
    if isinstance(fields["value"], str):
        fields["value"] = json.loads(fields["value"])
    # JSON has no NaN: it is written as null.
    if fields["probability"] is None:
        fields["probability"] = float("nan")
    return tuple(fields.values())


def _to_tuples(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return tuple(map(_to_tuples, value))


def to_arrow_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the rows as an Arrow table of plain columns. Raises ExpoundError for text that is not Unicode."""
    columns = {}
    for name in schema.names:
        columns[name] = [_to_plain(row[name]) for row in rows]
    try:
        return pa.table(columns, schema=schema)
    # A lone surrogate, which a Python string may hold, has no UTF-8 form.
    except (UnicodeEncodeError, pa.ArrowException) as error:
        raise ExpoundError(f"the explanations cannot be stored: {error}") from error


def _to_plain(value: Any) -> Any:
    # Arrow converts lists of lists, but neither tuples of tuples nor two-dimensional arrays.
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return list(value) if hasattr(value, "ndim") else value


def save(directory: Path, rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Path:
    """Write both files and return the directory. Each file appears under its name only when it is complete."""
    content = to_arrow_table(rows)
    description = {"format": FORMAT, "format_version": FORMAT_VERSION, "rows": len(rows)}
    try:
        with atomic_file(directory / DATA) as fresh:
            pq.write_table(content, fresh, compression="zstd")
            description |= {"sha256": _digest_file(fresh), "versions": get_versions(), "config": dict(config)}
        # Written last: its digest lets a reader detect a process that was killed between the two.
        with atomic_file(directory / CONFIG) as fresh:
            fresh.write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ExpoundError(f"cannot write explanations to {directory}: {error.strerror or error}") from error
    return directory


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows and the configuration that `save` wrote. Raises ExpoundError for other files."""
    # The description comes first, since it tells files of another version, which have another name.
    description = _read_description(directory / CONFIG)
    if not (directory / DATA).is_file():
        raise ExpoundError(f"{directory} holds no saved explanations: {DATA} is missing; give a directory from save()")
    if _digest_file(directory / DATA) != description.get("sha256"):
        raise ExpoundError(
            f"{directory / DATA} is not the file that {CONFIG} describes: damaged or half-saved; save again"
        )
    return _read_rows(directory / DATA), dict(description["config"])


def _read_description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ExpoundError(f"{path.parent} holds no saved explanations: {path.name} is missing; give one from save()")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExpoundError(f"{path} is not readable JSON ({error}); save the explanations again") from error
    name, version = (content.get("format"), content.get("format_version")) if isinstance(content, dict) else ("", None)
    if str(name).startswith("expound-") and version != FORMAT_VERSION:
        raise ExpoundError(
            f"{path} has version {version}, expected {FORMAT_VERSION}: explain and save again, or read it with the "
            "version of expound that wrote it"
        )
    if name != FORMAT or not isinstance(content.get("config"), dict):
        raise ExpoundError(f"{path} does not describe saved explanations; give a directory from save()")
    return dict(content)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        content = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise ExpoundError(f"{path} is not a readable Parquet file ({error}); save the explanations again") from error
    wrong = []
    for field in SCHEMA:
        is_known = field.name in content.column_names and content.column(field.name).type == field.type
        if not is_known or (field.name in REQUIRED and content.column(field.name).null_count):
            wrong.append(field.name)
    if wrong:
        raise ExpoundError(f"{path}: expected the columns of saved explanations; missing or of another type: {wrong}")
    rows: list[dict[str, Any]] = content.select(SCHEMA.names).to_pylist()
    return rows
