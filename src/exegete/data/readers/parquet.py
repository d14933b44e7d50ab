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
from exegete.errors import ExegeteError


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
            rows = pq.read_table(path).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ExegeteError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
        return some([(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)], path)
