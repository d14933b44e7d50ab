"""How the files of a corpus lie: a folder with a file for each split, or one file that is divided."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from exegete.data.readers.base import LabelType, Names, Reader, Row, Table, make_text_features, require_folder
from exegete.data.splits import DIVIDED, hash_to_unit_interval, is_in_split
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class FilePerSplit(Reader):
    """A folder with a file for each split.

    `names`: what the file of each split is called; where releases differ, the first of the names that is there.
    `labels`: names of the classes, or NUMBER; `pairs`: whether a row has two texts. `held_out`: where there is no dev,
    this share of train is it, by a hash of the first text and the seed.
    """

    names: ClassVar[Mapping[str, Names]]
    labels: ClassVar[LabelType | None] = None
    pairs: ClassVar[bool] = False
    held_out: float = 0.0

    def splits(self) -> tuple[str, ...]:
        """Those whose files are there, and dev if some of train is held out for it."""
        there = self.find_files()
        if not self.held_out:
            return tuple(there)
        if not 0 < self.held_out < 1 or "dev" in there or "train" not in there:
            reason = f"{self.path!r} has the splits {', '.join(there)}" if 0 < self.held_out < 1 else "it is no share"
            raise ExegeteError(f"cannot hold out {self.held_out} of train for dev: {reason}")
        return (*there, "dev")

    def table(self, split: str) -> Table:
        """The rows of the split's file."""
        there = self.find_files()
        path = there[split if split in there else "train"]
        rows = self.read_rows(path)
        if self.held_out and split in ("train", "dev"):
            rows = (
                row
                for row in rows
                if (hash_to_unit_interval(row["text"], self.seed) < self.held_out) == (split == "dev")
            )
        return Table(self.features(path), rows)

    def find_files(self) -> dict[str, Path]:
        """The file of each split."""
        return find_split_files(self.path, self.names)

    def features(self, path: Path) -> Features:
        """The types of a file's columns."""
        return make_text_features(self.labels, pair=self.pairs)

    @abstractmethod
    def read_rows(self, path: Path) -> Iterator[Row]:
        """The rows of a file."""


@dataclass(frozen=True, kw_only=True)
class DividedFile(Reader):
    """One file, divided 80/10/10 by a hash of each row's key and the seed: equal keys stay together.

    `names`: where a corpus is published as several files, what they are called; a folder of these is not divided.
    """

    names: ClassVar[Mapping[str, Names]] = {}

    def splits(self) -> tuple[str, ...]:
        """Train, dev, test and all of a file; those of a folder whose files are there."""
        return tuple(self._find_files() or DIVIDED)

    def table(self, split: str) -> Table:
        """The rows whose keys belong to the split; `all` is the whole file."""
        there = self._find_files()
        features, rows = self.read_keyed_rows(there.get(split, Path(self.path)))
        if there:
            return Table(features, (row for _, row in rows))
        return Table(features, (row for key, row in rows if is_in_split(key, split, self.seed)))

    def _find_files(self) -> dict[str, Path]:
        return find_split_files(self.path, self.names) if self.names and Path(self.path).is_dir() else {}

    @abstractmethod
    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """The columns' types, and all rows with the text that each is divided by."""


def find_split_files(
    where: str, names: Mapping[str, Names], is_one: Callable[[Path], bool] = Path.is_file
) -> dict[str, Path]:
    """The files of a folder by split, for each the first of its names that is there; `is_one` says what counts.

    Raises:
        ExegeteError: there is no such folder, or none of the files in it.
    """
    base = require_folder(where)
    there = {split: [base / name for name in each if is_one(base / name)][:1] for split, each in names.items()}
    if not any(there.values()):
        wanted = ", ".join(name for each in names.values() for name in each)
        raise ExegeteError(f"expected one of {wanted} in {where!r}, found none")
    return {split: found[0] for split, found in there.items() if found}
