"""Readers of corpora with one file per split, and of single files that are divided into splits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.readers.base import LabelType, Names, Reader, Row, Table, make_text_features, require_folder
from expound.data.splits import DIVIDED, hash_to_unit_interval, is_in_split
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class FilePerSplit(Reader):
    """Reads a folder with one file per split.

    Args:
        names: file names by split. Releases of a corpus differ, so the first name that exists is read.
        labels: names of the classes, or NUMBER.
        pairs: whether a row has two texts.
        held_out: if the folder has no dev split, the share of train that is used as dev, chosen by a hash of the first
            text and the seed.
    """

    names: ClassVar[Mapping[str, Names]]
    labels: ClassVar[LabelType | None] = None
    pairs: ClassVar[bool] = False
    held_out: float = 0.0

    def splits(self) -> tuple[str, ...]:
        """Return the splits whose files exist, and dev if a share of train is held out for it."""
        files = self.find_files()
        if not self.held_out:
            return tuple(files)
        if not 0 < self.held_out < 1:
            raise ExpoundError(f"cannot hold out {self.held_out} of train for dev: expected a share between 0 and 1")
        if "dev" in files or "train" not in files:
            splits = ", ".join(files)
            raise ExpoundError(
                f"cannot hold out {self.held_out} of train for dev: {self.path!r} has the splits {splits}"
            )
        return (*files, "dev")

    def table(self, split: str) -> Table:
        """Return the rows of the split's file."""
        files = self.find_files()
        # a held-out dev split has no file of its own: its rows are in the file of train
        path = files[split if split in files else "train"]
        rows = self.read_rows(path)
        if self.held_out and split in ("train", "dev"):
            rows = self._select_held_out(rows, is_dev=split == "dev")
        return Table(self.features(path), rows)

    def _select_held_out(self, rows: Iterator[Row], is_dev: bool) -> Iterator[Row]:
        for row in rows:
            if (hash_to_unit_interval(row["text"], self.seed) < self.held_out) == is_dev:
                yield row

    def find_files(self) -> dict[str, Path]:
        """Return the existing file of each split."""
        return find_split_files(self.path, self.names)

    def features(self, path: Path) -> Features:
        """Return the types of a file's columns."""
        return make_text_features(self.labels, pair=self.pairs)

    @abstractmethod
    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file."""


@dataclass(frozen=True, kw_only=True)
class DividedFile(Reader):
    """Reads one file, divided 80/10/10 by a hash of each row's key and the seed, so that equal keys share a split.

    `names`: file names by split of a corpus that is published as several files. A folder of them is not divided.
    """

    names: ClassVar[Mapping[str, Names]] = {}

    def splits(self) -> tuple[str, ...]:
        """Return train, dev, test and all for a file, and the splits whose files exist for a folder."""
        return tuple(self._find_files() or DIVIDED)

    def table(self, split: str) -> Table:
        """Return the rows whose keys belong to the split; `all` is the whole file."""
        files = self._find_files()
        features, rows = self.read_keyed_rows(files.get(split, Path(self.path)))
        if files:
            return Table(features, (row for _, row in rows))
        return Table(features, (row for key, row in rows if is_in_split(key, split, self.seed)))

    def _find_files(self) -> dict[str, Path]:
        if self.names and Path(self.path).is_dir():
            return find_split_files(self.path, self.names)
        return {}

    @abstractmethod
    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the types of the columns, and all rows, each after the key that it is divided by."""


def find_split_files(
    where: str, names: Mapping[str, Names], is_one: Callable[[Path], bool] = Path.is_file
) -> dict[str, Path]:
    """Return by split the first of its names for which `is_one` is true in the folder.

    Raises:
        ExpoundError: the folder or all of these files are missing.
    """
    base = require_folder(where)
    files: dict[str, Path] = {}
    for split, candidates in names.items():
        existing = [base / name for name in candidates if is_one(base / name)]
        if existing:
            files[split] = existing[0]
    if not files:
        expected = ", ".join(chain.from_iterable(names.values()))
        raise ExpoundError(f"expected one of {expected} in {where!r}, found none")
    return files
