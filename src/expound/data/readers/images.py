"""Tables of images and their labels; images keep the bytes of their files."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from expound.data.readers.base import NUMBER, Row, Table
from expound.data.readers.columns import LABELS, ColumnOptions, Labels, Records
from expound.errors import ExpoundError


def make_image_table(options: ColumnOptions, everything: Records, chosen: Records, column: str, where: str) -> Table:
    """Return the chosen records as a table of images; the labels, if any, are those of `everything`.

    Raises:
        ExpoundError: the label column is missing, or a row has no label or no image that can be opened.
    """
    from datasets import ClassLabel, Features, Image, Value

    first = next(iter(everything))[1]
    name = options.label_column or next((name for name in LABELS if name in first), None)
    if name and name not in first:
        raise ExpoundError(f"{where} has no column {name!r} (label_column); it has: {', '.join(first)}")
    labels = None
    columns: dict[str, Any] = {"image": Image()}
    if name:
        labels = Labels.of(everything, name, options.task)
        columns["label"] = Value(NUMBER) if labels.names is None else ClassLabel(names=labels.names)
    return Table(Features(columns), _make_rows(chosen, column, name, labels))


def _make_rows(records: Records, column: str, name: str | None, labels: Labels | None) -> Iterator[Row]:
    for where, record in records:
        row: Row = {"image": {"bytes": _read_image(record[column], column, where), "path": None}}
        if labels and name:
            row["label"] = labels.encode(record[name], where)
        yield row


def _read_image(stored: Any, column: str, where: str) -> bytes:
    """Return the bytes of an image file. Raises ExpoundError if it cannot be opened."""
    from PIL import Image

    try:
        content: bytes = stored["bytes"] or Path(stored["path"]).read_bytes()
        with Image.open(BytesIO(content)) as picture:
            picture.verify()
    except Exception as error:  # each image format raises errors of its own
        place = repr(column)
        if stored and stored["path"]:
            place += f" ({stored['path']})"
        raise ExpoundError(f"{where}: cannot open the image in {place}: {type(error).__name__}") from None
    return content
