"""Files of separated values whose first line has the column names."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Record, read_lines, require_file
from expound.data.readers.tabular import Tabular
from expound.errors import ExpoundError


@dataclass(frozen=True, kw_only=True)
class Csv(Tabular):
    """Reads csv files, quoted according to RFC 4180.

    Args:
        delimiter: the character between cells.
    """

    suffix: ClassVar[str] = ".csv"
    card: ClassVar[DataCard] = DataCard(
        name="csv", what="any table with a head line",
        form="csv:FILE or csv:FOLDER, with ?text_column=...&label_column=... where the names are not the usual ones",
        source="yours", license="the file's", example="csv:reviews.csv?text_column=review&label_column=stars",
    )  # fmt: skip
    delimiter: str = ","

    def read_records(self, path: Path) -> Iterator[Record]:
        """Yield the rows below the line of column names; all cells are strings."""
        if len(self.delimiter) != 1:
            raise ExpoundError(f"expected one character as delimiter, got {self.delimiter!r}")
        return read_csv_rows(path, self.delimiter)


def read_csv_rows(path: Path, delimiter: str = ",") -> Iterator[Record]:
    """Yield (place for errors, cells by column name) of a csv file whose first line has the column names.

    Raises ExpoundError for a repeated column name, and for a row with another number of cells.
    """
    rows = read_csv_cells(path, delimiter)
    _, head = next(rows)
    repeated = [name for name, count in Counter(head).items() if name and count > 1]
    if repeated:
        raise ExpoundError(f"{path} has several columns {repeated[0]!r}: rename all but one in its head line")
    for where, row in rows:
        if len(row) != len(head):
            raise ExpoundError(f"{where}: expected {len(head)} cells, got {len(row)}")
        yield where, dict(zip(head, row, strict=True))


def read_csv_cells(path: Path, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
    """Yield (place for errors, cells) of the lines that are not blank. Raises ExpoundError for invalid csv."""
    # the limit is a global of the csv module, 128 KiB by default; a whole document in a cell exceeds it
    csv.field_size_limit(max(csv.field_size_limit(), require_file(path).stat().st_size))
    rows = csv.reader(read_lines(path, ""), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            if row:
                yield f"{path}, line {rows.line_num}", row
    except csv.Error as error:
        raise ExpoundError(f"{path}, line {rows.line_num} is not valid csv: {error}") from None
