"""Tables with texts and labels in Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from exegete.data.cards import DataCard
from exegete.data.readers.columns import Records
from exegete.data.readers.tabular import Tabular, some
from exegete.errors import ExegeteError, brief


@dataclass(frozen=True, kw_only=True)
class Parquet(Tabular):
    """Columns with the types of the file."""

    suffix: ClassVar[str] = ".parquet"
    card: ClassVar[DataCard] = DataCard(
        name="parquet", what="any table in Parquet; rationales as lists of [start, end]",
        form="parquet:FILE or parquet:FOLDER, with ?text_column=... where the names are not the usual ones",
        source="yours", licence="the file's", example="parquet:reviews.parquet",
    )  # fmt: skip

    def records(self, path: Path) -> Records:
        """The rows, numbered from 1."""
        if not path.is_file():
            raise ExegeteError(f"expected a file at {str(path)!r}, found {'a folder' if path.exists() else 'nothing'}")
        try:
            table = pq.read_table(path)
            rows = table.to_pylist()
        except UnicodeDecodeError:
            raise ExegeteError(f"{path}, {_not_text(table)} is not UTF-8") from None
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise ExegeteError(f"{path} cannot be read as Parquet: {brief(error, 200)}") from None
        return some([(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)], path)


def _not_text(table: pa.Table) -> str:
    """Row and column of the first value that is not UTF-8."""
    for number in range(table.num_rows):
        for name in table.column_names:
            try:
                table[name][number].as_py()
            except UnicodeDecodeError:
                return f"row {number + 1}: {name}"
    return "a value"
