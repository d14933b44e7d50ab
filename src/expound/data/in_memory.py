"""Data that is in memory already: datasets, data frames and lists of rows, with columns of the user's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from expound.data.load import make_dataset
from expound.data.readers.columns import LABELS
from expound.data.readers.exchanges import are_exchanges, exchange_key
from expound.data.readers.hub import Hub
from expound.data.splits import assign_split
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InMemory(Hub):
    """Reads splits that are in memory; every split has the labels of all of them."""

    parts: Mapping[str, Dataset]

    @property
    def where(self) -> str:
        """The name of the data in errors."""
        return "the data"

    def _load(self) -> Any:
        return self.parts


def read_in_memory(train: Any, dev: Any = None, *, seed: int = 0, **columns: Any) -> tuple[Dataset, Dataset]:
    """Return training and dev data in canonical form.

    Args:
        train: a `datasets.Dataset`, a pandas DataFrame or a list of dicts.
        dev: the same. None: the rows are divided into 80 % to train on, 10 % to choose the best checkpoint on, and 10 %
            that are left for a test, as those of a file without splits.
        seed: random seed of the division.
        columns: see `ColumnOptions`. Without any, a dataset that is in canonical form is returned as it is.

    Raises:
        ExpoundError: a value that is no table, columns that are missing, or values that cannot be read.
    """
    parts = {"train": to_dataset(train, "train")}
    if dev is not None:
        parts["dev"] = to_dataset(dev, "dev")
    if columns or not all(map(_is_canonical, parts.values())):
        reader = InMemory(parts=dict(parts), **columns)
        for name in parts:
            table = reader.table(name)
            parts[name] = make_dataset(list(table.rows), table.features, "")
    if dev is None:
        parts |= _divide(parts["train"], seed)
    return parts["train"], parts["dev"]


def to_dataset(data: Any, name: str) -> Dataset:
    """Return a table as a `datasets.Dataset`; `name` names it in errors."""
    from datasets import Dataset

    if isinstance(data, Dataset):
        return data
    is_list = isinstance(data, Sequence) and bool(data) and all(isinstance(row, Mapping) for row in data)
    if not is_list and not isinstance(data, pd.DataFrame):
        raise ExpoundError(
            f"expected the {name} data as a spec, a datasets.Dataset, a pandas DataFrame or a list of dicts that is "
            f"not empty, got {type(data).__name__}"
        )
    try:
        if isinstance(data, pd.DataFrame):
            return Dataset.from_pandas(data, preserve_index=False)
        columns = {}
        for column in dict.fromkeys(chain.from_iterable(data)):
            columns[column] = [row.get(column) for row in data]
        return Dataset.from_dict(columns)
    except pa.ArrowException as error:
        raise ExpoundError(f"the {name} data has a column with values of several types: {error}") from error


def _is_canonical(data: Dataset) -> bool:
    """Return whether a dataset has the columns and types of `expound.load_data`."""
    from datasets import ClassLabel, List

    names, label = set(data.features), data.features.get("label")
    for name in names & {"rationale", "rationale_pair"}:
        if not isinstance(data.features[name], List) or not isinstance(data.features[name].feature, List):
            return False
    has_label = isinstance(label, ClassLabel) or str(getattr(label, "dtype", "")).startswith("float")
    has_input = bool(names & {"text", "image", "prompt", "messages"})
    return has_input and (has_label or not names & set(LABELS))


def _divide(data: Dataset, seed: int) -> dict[str, Dataset]:
    """Return the training and dev rows of undivided data; equal texts share a split."""
    if "image" in data.column_names:
        raise ExpoundError("expected data to choose the best checkpoint on: images are not divided, pass dev=")
    rows: dict[str, list[int]] = {"train": [], "dev": [], "test": []}
    is_exchange = are_exchanges([("", dict.fromkeys(data.column_names))])
    for number, row in enumerate(data):
        key = exchange_key(row) if is_exchange else row["text"]
        rows[assign_split(key, seed)].append(number)
    if not rows["train"] or not rows["dev"]:
        raise ExpoundError(
            f"{len(data)} rows are too few to set some aside, on which the best checkpoint is chosen: pass dev="
        )
    logger.warning(
        "no dev data: of %d rows, %d are trained on, %d choose the best checkpoint and %d are left for a test; "
        "dev= gives rows of your own to choose it on",
        len(data), *map(len, rows.values()),
    )  # fmt: skip
    return {"train": data.select(rows["train"]), "dev": data.select(rows["dev"])}
