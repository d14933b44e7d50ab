"""Data that is in memory already: datasets, data frames and lists of rows, with columns of the user's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from expound.data.load import make_dataset
from expound.data.readers.columns import LABELS, Columns, find_columns
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
        train: a dataset, a pandas DataFrame, a dict of lists or a list of dicts.
        dev: the same. None: the rows are divided into 80 % to train on, 10 % to choose the best checkpoint on, and 10 %
            that are left for a test, as rows of a file without splits.
        seed: random seed of the division.
        columns: see `ColumnOptions`. Without any, a dataset that is in canonical form is returned as it is.

    Raises:
        ExpoundError: a value that is no table, columns that are missing, or values that cannot be read.
    """
    parts = {"train": to_dataset(train, "train")}
    if dev is not None:
        parts["dev"] = to_dataset(dev, "dev")
    if columns or not all(map(_is_canonical, parts.values())):
        parts, line = _read_parts(parts, columns)
        if line:
            logger.warning("%s", line)
    if dev is None:
        parts |= _divide(parts["train"], seed)
    return parts["train"], parts["dev"]


def read_table(data: Dataset, **columns: Any) -> tuple[Dataset, str]:
    """Return a table with canonical columns, and a line that says which columns are read, see `ColumnOptions`.

    Raises:
        ExpoundError: columns that are missing, or values that cannot be read.
    """
    parts, line = _read_parts({"all": data}, columns)
    return parts["all"], line


def _read_parts(parts: Mapping[str, Dataset], columns: Mapping[str, Any]) -> tuple[dict[str, Dataset], str]:
    reader = InMemory(parts=dict(parts), **columns)
    read: dict[str, Dataset] = {}
    for name in parts:
        table = reader.table(name)
        read[name] = make_dataset(list(table.rows), table.features, "")
    first = next(iter(parts))
    if "image" in read[first].column_names:
        return read, ""
    columns_read = find_columns(reader, parts[first].column_names, reader.where)
    return read, _describe_table(parts[first], read[first], columns_read)


def _describe_table(data: Dataset, read: Dataset, columns: Columns) -> str:
    """Return a line on how a table was read, such as "60 rows; text ← ticket, label ← category (3 classes)".

    It is empty if the table had canonical columns and no others.
    """
    parts, used = [], {*columns.kept}
    for name, column in columns._asdict().items():
        if not column or name == "kept":
            continue
        used.add(column)
        kind = read.features.get(name)
        classes = f" ({len(kind.names)} class{'es' * (len(kind.names) != 1)})" if hasattr(kind, "names") else ""
        parts.append(f"{name if name == column else f'{name} ← {column}'}{classes}")
    unused = [name for name in data.column_names if name not in used]
    if not unused and not any("←" in part for part in parts):
        return ""
    left_out = f", {len(data) - len(read)} more without a label are left out" if len(read) < len(data) else ""
    line = f"{len(read)} rows{left_out}; {', '.join([*parts, *columns.kept])}"
    return f"{line}; unused: {', '.join(unused)}" if unused else line


def is_column(value: Any) -> bool:
    """Return whether a value of a dict is a column: a list, a series or an array of values."""
    return isinstance(value, list | tuple | pd.Series) or (isinstance(value, np.ndarray) and value.ndim == 1)


def to_dataset(data: Any, name: str) -> Dataset:
    """Return a table as a `datasets.Dataset`; `name` names it in errors.

    Raises:
        ExpoundError: what is no table, or several, or columns that no dataset can hold.
    """
    from datasets import Dataset

    if isinstance(data, Dataset):
        return data
    features = getattr(data, "features", None)
    if hasattr(data, "features"):
        # A dataset that is read row by row: all explanations are in memory, so the rows may be too.
        data = list(data)
    for convert in ("to_pylist", "to_dicts"):
        data = getattr(data, convert)() if hasattr(data, convert) else data
    try:
        if isinstance(data, pd.DataFrame):
            return Dataset.from_pandas(data.rename(columns=str), preserve_index=False)
        return Dataset.from_dict(_list_columns(data, name), features=features)
    except (pa.ArrowException, TypeError) as error:
        raise ExpoundError(f"the {name} data has a column with values of several types: {error}") from error


def _list_columns(data: Any, name: str) -> dict[str, list[Any]]:
    """Return the columns of a dict of lists, or of a list of dicts that is not empty."""
    if isinstance(data, Mapping) and any(hasattr(part, "column_names") for part in data.values()):
        raise ExpoundError(f"expected one split of the {name} data: choose one of {', '.join(map(str, data))}")
    if isinstance(data, Mapping) and data and all(map(is_column, data.values())):
        columns = {key: list(values) for key, values in data.items()}
        if len({*map(len, columns.values())}) > 1:
            lengths = ", ".join(f"{key} {len(values)}" for key, values in columns.items())
            raise ExpoundError(f"the columns of the {name} data have different lengths: {lengths}")
        return columns
    if not (isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data)):
        raise ExpoundError(
            f"expected the {name} data as a spec, a datasets.Dataset, a pandas DataFrame or a list of dicts that is "
            f"not empty, got {type(data).__name__}"
        )
    return {column: [row.get(column) for row in data] for column in dict.fromkeys(chain.from_iterable(data))}


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
