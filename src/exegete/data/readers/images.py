"""Columns of images and their classes as rows; the pictures stay as their files have them."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from exegete.data.readers.base import NUMBER, Row, Table
from exegete.data.readers.columns import LABELS, ColumnOptions, Labels, Records
from exegete.errors import ExegeteError


def make_image_table(options: ColumnOptions, everything: Records, chosen: Records, column: str, where: str) -> Table:
    """The chosen records' pictures as files; `everything` decides which labels there are, if any.

    Raises:
        ExegeteError: there is no label column of that name, or a row has no label or no picture that can be opened.
    """
    from datasets import ClassLabel, Features, Image, Value

    there = next(iter(everything))[1]
    name = options.label_column or next((name for name in LABELS if name in there), None)
    if name and name not in there:
        raise ExegeteError(f"{where} has no column {name!r} (label_column); it has: {', '.join(there)}")
    labels = Labels.of(everything, name, options.task) if name else None
    kind = labels and (Value(NUMBER) if labels.names is None else ClassLabel(names=labels.names))
    return Table(
        Features({"image": Image()} | ({"label": kind} if kind else {})), _make_rows(chosen, column, name, labels)
    )


def _make_rows(records: Records, column: str, name: str | None, labels: Labels | None) -> Iterator[Row]:
    for where, record in records:
        row = {"image": {"bytes": _read_image(record[column], column, where), "path": None}}
        yield row | ({"label": labels.encode(record[name], where)} if labels and name else {})


def _read_image(stored: Any, column: str, where: str) -> bytes:
    """The bytes of a picture's file. Raises ExegeteError where it cannot be opened."""
    from PIL import Image

    try:
        content: bytes = stored["bytes"] or Path(stored["path"]).read_bytes()
        with Image.open(BytesIO(content)) as picture:
            picture.verify()
    except Exception as error:  # each format raises errors of its own
        file = f" ({stored['path']})" if stored and stored["path"] else ""
        raise ExegeteError(f"{where}: cannot open the image in {column!r}{file}: {type(error).__name__}") from None
    return content
