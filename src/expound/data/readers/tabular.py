"""The common base of the readers of csv, jsonl and parquet files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

from expound.data.readers.base import Reader, Record, Rereadable, Row, Table, get_field
from expound.data.readers.columns import (
    ColumnOptions,
    Records,
    describe_columns,
    find_columns,
    find_names,
    make_table,
)
from expound.data.readers.exchanges import are_exchanges, exchange_key, make_exchange_table
from expound.data.readers.layouts import find_split_files
from expound.data.splits import DIVIDED, is_in_split, normalize_split_name
from expound.errors import ExpoundError

PEEKED = 1000
"""Number of rows that are read to find the names of columns."""


@dataclass(frozen=True, kw_only=True)
class Tabular(ColumnOptions, Reader):
    """Reads a table in one file, or in a folder with one file per split: train, dev (or validation, val) and test.

    A single file without a split column is divided 80/10/10 by a hash of the first text and the seed, so that equal
    texts share a split. `all` is the whole file.

    Args:
        split_column: the column of a single file that has the names of splits.
    """

    suffix: ClassVar[str]
    has_equal_columns: ClassVar[bool] = True
    """Whether all rows of a file have the same columns."""
    split_column: str = ""

    @abstractmethod
    def read_records(self, path: Path) -> Iterator[Record]:
        """Yield the rows of a file with their places."""

    @property
    def default_split(self) -> str:
        """The split that is used unless another is named: all of a file without a split column, else dev."""
        return "dev" if self.split_column or Path(self.path).is_dir() else "all"

    def describe_columns(self) -> str:
        """Return a line on the columns of the first rows; empty for generated text."""
        paths = self._find_files().values() if Path(self.path).is_dir() else [Path(self.path)]
        first: list[Record] = []
        for path in paths:
            first += islice(self._open_records(path), PEEKED)
        if not self.text_column and are_exchanges(first):
            return ""
        return describe_columns(self, find_names(first), self.path, [self.split_column])

    def splits(self) -> tuple[str, ...]:
        """Return the splits: the files of a folder, the values of the split column, or train, dev, test and all."""
        if Path(self.path).is_dir():
            return tuple(self._find_files())
        if not self.split_column:
            return DIVIDED
        names: dict[str, None] = {}
        for where, row in self._open_records(Path(self.path)):
            names[normalize_split_name(str(get_field(row, self.split_column, where)))] = None
        return (*names, "all")

    def table(self, split: str) -> Table:
        """Return the rows of a split."""
        return self._read_split(split, lambda path: list(self._open_records(path)))

    def stream(self, split: str) -> Table:
        """Return the same rows, read one by one. The file is read once before, to find the labels."""
        return self._read_split(split, self._open_records)

    def _read_split(self, split: str, records: Callable[[Path], Records]) -> Table:
        if Path(self.path).is_dir():
            parts = {name: records(path) for name, path in self._find_files().items()}
            return self._make_table(Rereadable(lambda: chain.from_iterable(parts.values())), parts[split])
        everything = records(Path(self.path))
        return self._make_table(everything, self._select(everything, split))

    def _open_records(self, path: Path) -> Records:
        """Return the records of a file. Raises ExpoundError if it has no rows."""
        read = partial(self.read_records, path)
        # only the first record is read; a file without any has no columns to find
        first = next(read(), None)
        if first is None:
            raise ExpoundError(f"{path} is empty: it has no rows")
        return Rereadable(read, tuple(first[1]) if self.has_equal_columns else None)

    def _make_table(self, everything: Records, chosen: Records) -> Table:
        if not self.text_column and are_exchanges(everything):
            return make_exchange_table(chosen)
        return make_table(self, everything, chosen, self.path)

    def _select(self, records: Records, split: str) -> Records:
        if split == "all":
            return records
        if self.split_column:
            return self._filter(records, lambda row: normalize_split_name(str(row[self.split_column])) == split)
        if not self.text_column and are_exchanges(records):
            return self._filter(records, lambda row: is_in_split(exchange_key(row), split, self.seed))
        text = find_columns(self, find_names(records), self.path).text
        return self._filter(records, lambda row: is_in_split(str(row.get(text)), split, self.seed))

    def _filter(self, records: Records, condition: Callable[[Row], bool]) -> Records:
        return Rereadable(lambda: ((where, row) for where, row in records if condition(row)))

    def _find_files(self) -> dict[str, Path]:
        end = self.suffix
        names = {
            "train": [f"train{end}"],
            "dev": [f"dev{end}", f"validation{end}", f"val{end}"],
            "test": [f"test{end}"],
        }
        return find_split_files(self.path, names)
