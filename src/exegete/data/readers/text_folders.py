"""A folder for each class, with a text in each file, as IMDB's reviews are published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import Names, Reader, Row, Table, folder, need_text, read, row_of, text_features
from exegete.errors import ExegeteError

SPLITS = {"train": ("train",), "dev": ("dev", "validation", "val"), "test": ("test",)}
UNLABELLED = "unsup"


@dataclass(frozen=True, kw_only=True)
class TextFolders(Reader):
    """The texts as they are, by their files' names; classes are the folders in any split, without IMDB's `unsup`."""

    card: ClassVar[DataCard] = DataCard(
        name="text_folders", what="any classification as a folder a class with a text a file, such as IMDB's aclImdb",
        form="text_folders:FOLDER with SPLIT/CLASS/*.txt", source="yours; IMDB: Maas et al. 2011",
        licence="the files'", example="text_folders:corpora/aclImdb",
    )  # fmt: skip

    def splits(self) -> tuple[str, ...]:
        """The folders that are there."""
        return tuple(self._folders())

    def table(self, split: str) -> Table:
        """The texts of a split, one row each."""
        folders = self._folders()
        classes = sorted({each.name for base in folders.values() for each in _classes(base)})
        return Table(text_features(classes), _rows(folders[split], classes))

    def _folders(self) -> dict[str, Path]:
        base = folder(self.path)
        there = {split: [base / name for name in names if _classes(base / name)][:1] for split, names in SPLITS.items()}
        if not any(there.values()):
            raise ExegeteError(f"expected train, dev or test with a folder for each class in {self.path!r}, found none")
        return {split: found[0] for split, found in there.items() if found}


def _classes(base: Path) -> list[Path]:
    if not base.is_dir():
        return []
    return sorted(each for each in base.iterdir() if each.is_dir() and each.name != UNLABELLED)


def _rows(base: Path, classes: Names) -> Iterator[Row]:
    for each in _classes(base):
        for path in sorted(each.glob("*.txt")):
            text = need_text(read(path), "text", str(path))
            yield row_of((text, None)) | {"label": classes.index(each.name)}
