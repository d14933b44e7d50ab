"""Folders of text files, one folder per class, as IMDB's reviews are published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Names, Row, make_row, make_text_features, read_text, require_text
from expound.data.readers.layouts import FilePerSplit, find_split_files

if TYPE_CHECKING:
    from datasets import Features

UNLABELED = "unsup"


@dataclass(frozen=True, kw_only=True)
class TextFolders(FilePerSplit):
    """Reads texts in the order of file names; the classes are the folders of all splits, except IMDB's `unsup`."""

    card: ClassVar[DataCard] = DataCard(
        name="text_folders", what="any classification in folders by class, one text per file, such as IMDB's aclImdb",
        form="text_folders:FOLDER with SPLIT/CLASS/*.txt; ?held_out=0.1", source="yours; IMDB: Maas et al. 2011",
        license="the files'", example="text_folders:corpora/aclImdb",
    )  # fmt: skip

    names: ClassVar = {"train": ("train",), "dev": ("dev", "validation", "val"), "test": ("test",)}

    def find_files(self) -> dict[str, Path]:
        """Return the folders of classes by split."""
        return find_split_files(self.path, self.names, lambda base: bool(_find_class_folders(base)))

    def features(self, path: Path) -> Features:
        """Return the column types of texts with the classes of all splits."""
        return make_text_features(self._find_labels())

    def read_rows(self, path: Path) -> Iterator[Row]:
        """Yield the texts of a split, class by class."""
        labels = self._find_labels()
        for class_folder in _find_class_folders(path):
            for file in sorted(class_folder.glob("*.txt")):
                text = require_text(read_text(file), "text", str(file))
                yield make_row((text, None)) | {"label": labels.index(class_folder.name)}

    def _find_labels(self) -> Names:
        names: set[str] = set()
        for base in self.find_files().values():
            names |= {folder.name for folder in _find_class_folders(base)}
        return sorted(names)


def _find_class_folders(base: Path) -> list[Path]:
    if not base.is_dir():
        return []
    return sorted(folder for folder in base.iterdir() if folder.is_dir() and folder.name != UNLABELED)
