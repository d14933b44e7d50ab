"""Tables of images and their labels; images keep the bytes of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from expound.data.readers.base import NUMBER, Row, Table
from expound.data.readers.columns import LABELS, ColumnOptions, Labels, Records
from expound.errors import ExpoundError


def make_image_table(
    options: ColumnOptions,
    everything: Records,
    chosen: Records,
    column: str,
    where: str,
    is_own_file: Callable[[str], bool],
) -> Table:
    """Return the chosen records as a table of images; its labels, if any, are the labels of `everything`.

    Raises:
        ExpoundError: the label column is missing, or a row has no label, no image that can be opened, or names a file
            that is not the dataset's own (`is_own_file`).
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
    return Table(Features(columns), _make_rows(chosen, column, name, labels, is_own_file))


def _make_rows(
    records: Records, column: str, name: str | None, labels: Labels | None, is_own_file: Callable[[str], bool]
) -> Iterator[Row]:
    for where, record in records:
        stored = record[column]
        if stored and stored["path"] and not stored["bytes"] and not is_own_file(stored["path"]):
            raise ExpoundError(f"{where}: expected an image of the dataset in {column!r}, got {stored['path']!r:.80}")
        row: Row = {"image": {"bytes": _read_image(stored, column, where), "path": None}}
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
