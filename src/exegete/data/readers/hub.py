"""Datasets of the Hugging Face hub, or a local copy of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from exegete.data.cards import DataCard
from exegete.data.readers.base import Reader, Table
from exegete.data.readers.columns import ColumnOptions, Records, tabulate
from exegete.data.splits import choose
from exegete.errors import ExegeteError


@dataclass(frozen=True, kw_only=True)
class Hub(ColumnOptions, Reader):
    """A dataset that `datasets.load_dataset` finds by name, `config` and `revision`; code of the dataset is never run.

    Class labels go by their names; rows without a gold label (-1) are left out.
    """

    card: ClassVar[DataCard] = DataCard(
        name="hub", what="any text dataset of the Hugging Face hub",
        form="hub:NAME, with ?config=...&text_column=... where needed", source="the dataset's card",
        licence="the dataset's", example="hub:nyu-mll/glue?config=sst2",
    )  # fmt: skip
    config: str = ""
    revision: str = ""

    def splits(self) -> tuple[str, ...]:
        """The splits of the dataset; validation is dev."""
        return tuple(self._load())

    def table(self, split: str) -> Table:
        """The labelled examples of a split, one row each."""
        parts = self._load()
        everything = [record for name, part in parts.items() for record in self._records(part, name)]
        if not everything:
            raise ExegeteError(f"hub:{self.path} is empty: it has no labelled rows")
        chosen = self._records(parts[choose(split, parts)], split)
        return tabulate(self, everything, chosen, f"hub:{self.path}")

    def _load(self) -> Any:
        from datasets import load_dataset
        from datasets.exceptions import DatasetNotFoundError

        try:
            return load_dataset(self.path, self.config or None, revision=self.revision or None)
        except (DatasetNotFoundError, OSError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ExegeteError(f"cannot load {self.path!r} from the hub: {reason}") from error

    def _records(self, part: Any, split: str) -> Records:
        from datasets import ClassLabel

        classes = {name: kind for name, kind in part.features.items() if isinstance(kind, ClassLabel)}
        column = self.label_column or next((name for name in ("label", "labels") if name in classes), "")
        return [
            (f"hub:{self.path}, {split} row {number}", row | _named(row, classes))
            for number, row in enumerate(part, start=1)
            if row.get(column) != -1 or column not in classes
        ]


def _named(row: dict[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    return {name: kind.int2str(row[name]) for name, kind in classes.items() if row[name] is not None and row[name] >= 0}
