"""How the files of a corpus lie: a folder with a file for each split, or one file that is divided."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from exegete.data.readers.base import LabelType, Names, Reader, Row, Table, folder, text_features
from exegete.data.splits import DIVIDED, belongs
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True, kw_only=True)
class FileASplit(Reader):
    """A folder with a file for each split.

    `names`: what the file of each split is called; where releases differ, the first of the names that is there.
    `labels`: names of the classes, or NUMBER; `pairs`: whether a row has two texts.
    """

    names: ClassVar[Mapping[str, Names]]
    labels: ClassVar[LabelType | None] = None
    pairs: ClassVar[bool] = False

    def splits(self) -> tuple[str, ...]:
        """Those whose files are there."""
        return tuple(self.files())

    def table(self, split: str) -> Table:
        """The rows of the split's file."""
        path = self.files()[split]
        return Table(self.features(path), self.rows(path))

    def files(self) -> dict[str, Path]:
        """The file of each split."""
        return files(self.path, self.names)

    def features(self, path: Path) -> Features:
        """The types of a file's columns."""
        return text_features(self.labels, pair=self.pairs)

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Row]:
        """The rows of a file."""


@dataclass(frozen=True, kw_only=True)
class Divided(Reader):
    """One file, divided 80/10/10 by a hash of each row's key and the seed: equal keys stay together."""

    def splits(self) -> tuple[str, ...]:
        """Always train, dev, test and all."""
        return DIVIDED

    def table(self, split: str) -> Table:
        """The rows whose keys belong to the split; `all` is the whole file."""
        features, rows = self.keyed(Path(self.path))
        return Table(features, (row for key, row in rows if belongs(key, split, self.seed)))

    @abstractmethod
    def keyed(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """The columns' types, and all rows with the text that each is divided by."""


def files(where: str, names: Mapping[str, Names]) -> dict[str, Path]:
    """The files of a folder by split, for each the first of its names that is there.

    Raises:
        ExegeteError: there is no such folder, or none of the files in it.
    """
    base = folder(where)
    there = {split: [base / name for name in each if (base / name).is_file()][:1] for split, each in names.items()}
    if not any(there.values()):
        wanted = ", ".join(name for each in names.values() for name in each)
        raise ExegeteError(f"expected one of {wanted} in {where!r}, found none")
    return {split: found[0] for split, found in there.items() if found}
