"""A folder for each class, with a text in each file, as IMDB's reviews are published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import Names, Row, make_row, make_text_features, read_text, require_text
from exegete.data.readers.layouts import FilePerSplit, find_split_files

if TYPE_CHECKING:
    from datasets import Features

UNLABELLED = "unsup"


@dataclass(frozen=True, kw_only=True)
class TextFolders(FilePerSplit):
    """The texts as they are, by their files' names; classes are the folders in any split, without IMDB's `unsup`."""

    card: ClassVar[DataCard] = DataCard(
        name="text_folders", what="any classification as a folder a class with a text a file, such as IMDB's aclImdb",
        form="text_folders:FOLDER with SPLIT/CLASS/*.txt; ?held_out=0.1", source="yours; IMDB: Maas et al. 2011",
        licence="the files'", example="text_folders:corpora/aclImdb",
    )  # fmt: skip

    names: ClassVar = {"train": ("train",), "dev": ("dev", "validation", "val"), "test": ("test",)}

    def find_files(self) -> dict[str, Path]:
        """The folders that hold classes."""
        return find_split_files(self.path, self.names, lambda base: bool(_find_class_folders(base)))

    def features(self, path: Path) -> Features:
        """Texts in the classes of all splits."""
        return make_text_features(self._find_labels())

    def read_rows(self, path: Path) -> Iterator[Row]:
        """The texts of a split, class by class."""
        labels = self._find_labels()
        for each in _find_class_folders(path):
            for file in sorted(each.glob("*.txt")):
                text = require_text(read_text(file), "text", str(file))
                yield make_row((text, None)) | {"label": labels.index(each.name)}

    def _find_labels(self) -> Names:
        return sorted({each.name for base in self.find_files().values() for each in _find_class_folders(base)})


def _find_class_folders(base: Path) -> list[Path]:
    if not base.is_dir():
        return []
    return sorted(each for each in base.iterdir() if each.is_dir() and each.name != UNLABELLED)
