"""Storage of the rows that were compared: texts, pictures, labels and rationales."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from expound.data.atomic_files import atomic_file
from expound.data.readers.exchanges import EXCHANGE

EXAMPLES = "examples.parquet"
_SPANS = pa.list_(pa.list_(pa.int64()))
SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "text_pair": pa.string(),
        "label_name": pa.string(),
        "rationale": _SPANS,
        "rationale_pair": _SPANS,
        "image": pa.binary(),
        "exchange": pa.string(),
    }
)
"""`label_name`: the model's name of the label; `image`: a PNG; `exchange`: the columns of generated text as JSON.

Missing values are null.
"""


def write_examples(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows to a Parquet file."""
    content = pa.Table.from_pylist([_to_stored_row(row) for row in rows], schema=SCHEMA)
    with atomic_file(path) as fresh:
        pq.write_table(content, fresh, compression="zstd")


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without missing values."""
    return [_from_stored_row(row) for row in pq.read_table(path).to_pylist()]


def _to_stored_row(row: Mapping[str, Any]) -> dict[str, Any]:
    stored = {name: row.get(name) for name in SCHEMA.names}
    if stored["image"] is not None:
        # PNG is lossless, so that explanations of the loaded picture are the same.
        buffer = BytesIO()
        stored["image"].save(buffer, format="PNG")
        stored["image"] = buffer.getvalue()
    exchange = {name: row[name] for name in EXCHANGE if row.get(name) is not None}
    if exchange:
        stored["exchange"] = json.dumps(exchange, ensure_ascii=False)
    return stored


def _from_stored_row(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in row.items() if value is not None}
    if "image" in known:
        known["image"] = Image.open(BytesIO(known["image"]))
    exchange: dict[str, Any] = json.loads(known.pop("exchange", "{}"))
    return known | exchange
