"""Datasets of the Hugging Face hub, or local copies of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from expound.data.cards import DataCard
from expound.data.readers.base import Reader, Record, Rereadable, Table, is_inside
from expound.data.readers.columns import LABELS, USUAL, ColumnOptions, Records, describe_columns, make_table
from expound.data.readers.images import make_image_table
from expound.data.splits import find_split
from expound.errors import ExpoundError


@dataclass(frozen=True, kw_only=True)
class Hub(ColumnOptions, Reader):
    """Reads a dataset with `datasets.load_dataset`, without running code of the dataset.

    Class labels are read by their names, and rows without a gold label (-1) are left out.

    Args:
        config: name of the dataset's configuration.
        revision: branch, tag or commit of its repository.
        image_column: the column of images. Default: the first one of a dataset without text.
    """

    card: ClassVar[DataCard] = DataCard(
        name="hub", what="any dataset of the Hugging Face hub with texts or images, or a local copy",
        form="hub:NAME or hub:FOLDER, with ?config=...&text_column=...&image_column=... where needed",
        source="the dataset's card", license="the dataset's", example="hub:nyu-mll/glue?config=sst2",
    )  # fmt: skip
    config: str = ""
    revision: str = ""
    image_column: str = ""

    @property
    def where(self) -> str:
        """The name of the data in errors."""
        return f"hub:{self.path}"

    def describe_columns(self) -> str:
        """Return a line on the columns of the dataset; empty for images."""
        parts = self._load()
        if self._find_image_column(parts):
            return ""
        return describe_columns(self, list(next(iter(parts.values())).features), self.where)

    def splits(self) -> tuple[str, ...]:
        """Return the splits of the dataset; validation may also be called dev."""
        return tuple(self._load())

    def table(self, split: str) -> Table:
        """Return the labeled rows of a split."""
        return self._read_split(split, list)

    def stream(self, split: str) -> Table:
        """Return the same rows, read one by one from the cached files of `datasets`."""
        return self._read_split(split, lambda records: records)

    def _read_split(self, split: str, kept: Callable[[Records], Records]) -> Table:
        from datasets import Image

        parts, where = self._load(), self.where
        column, name = self._find_image_column(parts), find_split(split, parts)
        # without images, which would be decoded for nothing when the labels are collected
        records = [self._make_records(part.remove_columns(column or []), key) for key, part in parts.items()]
        everything = kept(Rereadable(lambda: chain.from_iterable(records)))
        if next(iter(everything), None) is None:
            raise ExpoundError(f"{where} is empty: it has no labeled rows")
        if column is None:
            return make_table(self, everything, self._make_records(parts[name], split), where)
        pictures = parts[name].cast_column(column, Image(decode=False))
        return make_image_table(self, everything, self._make_records(pictures, split), column, where, self._is_own_file)

    def _is_own_file(self, path: str) -> bool:
        """Return whether a file is in the dataset's folder or was downloaded from the hub."""
        from datasets import config
        from huggingface_hub.constants import HF_HUB_CACHE

        caches = (HF_HUB_CACHE, config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH)
        return any(is_inside(path, folder) for folder in (self.path, *caches))

    def _find_image_column(self, parts: Any) -> str | None:
        from datasets import Image

        columns = next(iter(parts.values())).features
        if self.image_column and not isinstance(columns.get(self.image_column), Image):
            raise ExpoundError(f"{self.where} has no images in {self.image_column!r}; it has: {', '.join(columns)}")
        if self.image_column or self.text_column or columns.keys() & USUAL:
            return self.image_column or None
        for name, feature in columns.items():
            if isinstance(feature, Image):
                return str(name)
        return None

    def _load(self) -> Any:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError

        try:
            return load_dataset(self.path, self.config or None, revision=self.revision or None)
        except (DatasetsError, OSError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ExpoundError(f"cannot load {self.path!r} from the hub: {reason}") from error

    def _make_records(self, part: Any, split: str) -> Records:
        from datasets import ClassLabel

        classes = {name: kind for name, kind in part.features.items() if isinstance(kind, ClassLabel)}
        column = self.label_column or next((name for name in LABELS if name in classes), "")
        return Rereadable(partial(self._read_part, part, split, classes, column))

    def _read_part(self, part: Any, split: str, classes: dict[str, Any], column: str) -> Iterator[Record]:
        for number, row in enumerate(part, start=1):
            if column in classes and row[column] == -1:
                continue
            for name, feature in classes.items():
                if row[name] is not None and row[name] >= 0:
                    row[name] = feature.int2str(row[name])
            yield f"{self.where}, {split} row {number}", row
