"""Datasets of the Hugging Face hub, or a local copy of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import Again, Reader, Record, Table
from exegete.data.readers.columns import LABELS, USUAL, ColumnOptions, Records, described, tabulate
from exegete.data.readers.images import image_table
from exegete.data.splits import choose
from exegete.errors import ExegeteError


@dataclass(frozen=True, kw_only=True)
class Hub(ColumnOptions, Reader):
    """A dataset that `datasets.load_dataset` finds by name, `config` and `revision`; code of the dataset is never run.

    Class labels go by their names; rows without a gold label (-1) are left out. Images are read from `image_column`, or
    from the first column of images where there is no text.
    """

    card: ClassVar[DataCard] = DataCard(
        name="hub", what="any dataset of the Hugging Face hub with texts or images, or a local copy",
        form="hub:NAME or hub:FOLDER, with ?config=...&text_column=...&image_column=... where needed",
        source="the dataset's card", licence="the dataset's", example="hub:nyu-mll/glue?config=sst2",
    )  # fmt: skip
    config: str = ""
    revision: str = ""
    image_column: str = ""

    def columns(self) -> str:
        """As the dataset has them; nothing of images."""
        parts = self._load()
        if self._images(parts):
            return ""
        return described(self, list(next(iter(parts.values())).features), f"hub:{self.path}")

    def splits(self) -> tuple[str, ...]:
        """The splits of the dataset; validation is dev."""
        return tuple(self._load())

    def table(self, split: str) -> Table:
        """The labelled examples of a split, one row each."""
        return self._table(split, list)

    def stream(self, split: str) -> Table:
        """The same, a row at a time from the library's files."""
        return self._table(split, lambda records: records)

    def _table(self, split: str, kept: Callable[[Records], Records]) -> Table:
        from datasets import Image

        parts, where = self._load(), f"hub:{self.path}"
        column, name = self._images(parts), choose(split, parts)
        each = [self._records(part.remove_columns(column or []), key) for key, part in parts.items()]
        everything = kept(Again(lambda: chain.from_iterable(each)))
        if next(iter(everything), None) is None:
            raise ExegeteError(f"{where} is empty: it has no labelled rows")
        if column is None:
            return tabulate(self, everything, self._records(parts[name], split), where)
        pictures = parts[name].cast_column(column, Image(decode=False))
        return image_table(self, everything, self._records(pictures, split), column, where)

    def _images(self, parts: Any) -> str | None:
        from datasets import Image

        kinds = next(iter(parts.values())).features
        if self.image_column and not isinstance(kinds.get(self.image_column), Image):
            raise ExegeteError(f"hub:{self.path} has no images in {self.image_column!r}; it has: {', '.join(kinds)}")
        if self.image_column or self.text_column or kinds.keys() & USUAL:
            return self.image_column or None
        return next((name for name, kind in kinds.items() if isinstance(kind, Image)), None)

    def _load(self) -> Any:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError

        try:
            return load_dataset(self.path, self.config or None, revision=self.revision or None)
        except (DatasetsError, OSError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ExegeteError(f"cannot load {self.path!r} from the hub: {reason}") from error

    def _records(self, part: Any, split: str) -> Records:
        from datasets import ClassLabel

        classes = {name: kind for name, kind in part.features.items() if isinstance(kind, ClassLabel)}
        column = self.label_column or next((name for name in LABELS if name in classes), "")
        return Again(partial(self._each, part, split, classes, column if column in classes else None))

    def _each(self, part: Any, split: str, classes: dict[str, Any], column: str | None) -> Iterator[Record]:
        for number, row in enumerate(part, start=1):
            if column is None or row[column] != -1:
                yield f"hub:{self.path}, {split} row {number}", row | _named(row, classes)


def _named(row: dict[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    return {name: kind.int2str(row[name]) for name, kind in classes.items() if row[name] is not None and row[name] >= 0}
