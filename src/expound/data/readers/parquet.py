"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from expound.data.cards import DataCard
from expound.data.readers.base import Record, Row, Table, require_file
from expound.data.readers.tabular import Tabular
from expound.errors import ExpoundError, shorten

# A column that repeats one long text is tiny in the file, and has the text once per row in memory.
ROWS_AT_A_TIME = 64


@dataclass(frozen=True, kw_only=True)
class Parquet(Tabular):
    """Reads Parquet files; columns keep the types of the file."""

    suffix: ClassVar[str] = ".parquet"
    card: ClassVar[DataCard] = DataCard(
        name="parquet", what="any table in Parquet; rationales as lists of [start, end]",
        form="parquet:FILE or parquet:FOLDER, with ?text_column=... where the names are not the usual ones",
        source="yours", license="the file's", example="parquet:reviews.parquet",
    )  # fmt: skip

    def table(self, split: str) -> Table:
        """Return the rows of a split, read one by one: a small file can hold more than the memory."""
        return self.stream(split)

    def read_records(self, path: Path) -> Iterator[Record]:
        """Yield the rows, numbered from 1."""
        number = 0
        try:
            with pq.ParquetFile(require_file(path)) as content:
                for batch in content.iter_batches(batch_size=ROWS_AT_A_TIME):
                    for row in _to_rows(batch, path, number):
                        number += 1
                        yield f"{path}, row {number}", row
        except ExpoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise ExpoundError(f"{path} cannot be read as Parquet: {shorten(error, 200)}") from None


def _to_rows(batch: pa.RecordBatch, path: Path, before: int) -> list[Row]:
    try:
        rows: list[Row] = batch.to_pylist()
    except UnicodeDecodeError:
        raise ExpoundError(f"{path}, {_find_invalid_text(batch, before)} is not UTF-8") from None
    return rows


def _find_invalid_text(batch: pa.RecordBatch, before: int) -> str:
    """Return the row and column of the batch's first value that is not UTF-8; `before`: rows of earlier batches."""
    for number in range(batch.num_rows):
        for name in batch.schema.names:
            try:
                batch[name][number].as_py()
            except UnicodeDecodeError:
                return f"row {before + number + 1}: {name}"
    return "a value"
