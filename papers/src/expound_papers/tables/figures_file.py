"""Figures of runs in one small Parquet file, without weights: what the tables of a page are made from.

Each row is a figure: the `key` of its cell, the `part` (a file of the cell's folder), the `example`, `method` and
position `x`, its `name` and `value`. What is not a number (a cell's record, the history of its training) is `text`.
Predictions of a classifier are 1 for the predicted class and 0 for the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from expound.data.atomic_files import atomic_file, atomic_folder
from expound.data.provenance import write_json
from expound.errors import ExpoundError
from expound.training.loop.run import HISTORY, METRICS
from expound_papers.runs.run_files import CURVES, FIGURES, LAYERS, PREDICTIONS, RESULTS, read_numbers
from expound_papers.runs.store import FIGURES_ONLY, RECORD, Store, file_sizes
from expound_papers.study.study import Study
from expound_papers.tables.agreement import list_comparisons

COLUMNS = ("key", "part", "example", "method", "name", "x", "value", "text")
SOURCES, DERIVED = "sources", "derived"
PREDICTED, TIME = "predicted ", "seconds"
UNUSED = ("probability", "tokens", "truncated")


def export_figures(studies: Iterable[Study], store: Store, path: Path) -> int:
    """Write the figures of all finished runs of some studies into a Parquet file; return the number of runs.

    Raises:
        ExpoundError: no run is finished.
    """
    frames, keys = list[pd.DataFrame](), dict[str, None]()
    for study in studies:
        keys |= dict.fromkeys(cell.key for cell in study.cells if store.is_done(cell.key))
        frames.append(_make_table("", SOURCES, name=[study.name], text=[_to_json(study.addresses)]))
        for *_, key, compute in list_comparisons(study, store):
            frames.append(_make_table("", DERIVED, name=[key], value=[store.compute_derived(key, compute)]))
    if not keys:
        raise ExpoundError(f"no run of these studies is finished in {store.root}")
    for key in keys:
        frames += _make_run_tables(store, key)
    table = pd.concat([frame.reindex(columns=COLUMNS) for frame in frames if len(frame)], ignore_index=True)
    table = table.drop_duplicates().astype({"example": "Int32", "x": np.float64, "value": np.float64})
    # Texts are compressed better beside each other than among numbers.
    table = table.sort_values("part", kind="stable")
    # BYTE_STREAM_SPLIT groups bytes of equal significance, which zstd compresses better than whole floats.
    with atomic_file(path) as fresh:
        pq.write_table(
            pa.Table.from_pandas(table, preserve_index=False),
            fresh,
            compression="zstd",
            compression_level=19,
            use_dictionary=["key", "part", "method", "name"],
            column_encoding={"value": "BYTE_STREAM_SPLIT", "x": "BYTE_STREAM_SPLIT"},
        )
    return len(keys)


def import_figures(path: Path, store: Store) -> int:
    """Add the runs in a file of `export_figures` to a store, without replacing any; return the number of new runs.

    Raises:
        ExpoundError: the file cannot be read, or was not written by `export_figures`.
    """
    try:
        table = pd.read_parquet(path, columns=list(COLUMNS))
    except (OSError, ValueError, KeyError) as error:
        raise ExpoundError(f"{path} holds no figures of runs: {' '.join(str(error).split())[:200]}") from error
    for _, row in table[table["part"] == SOURCES].iterrows():
        write_json(store.root / SOURCES / f"{row['name']}.json", json.loads(row["text"]))
    for name, value in table.loc[table["part"] == DERIVED, ["name", "value"]].itertuples(index=False):
        write_json(store.root / DERIVED / f"{name}.json", {"value": value})
    added = 0
    for key, rows in table[table["key"] != ""].groupby("key", sort=True):
        if not store.is_done(str(key)):
            _restore_run(store, str(key), rows)
            added += 1
    return added


def merge_stores(other: Store, store: Store) -> int:
    """Copy the runs that this store lacks, or has only the figures of, from another store; return their number."""
    copied = 0
    for key in list(other.list_finished()):
        if store.is_complete(key) or (store.is_done(key) and not other.is_complete(key)):
            continue
        store.clean(key)
        with atomic_folder(store.cell_folder(key)) as fresh:
            _copy_folder(other.cell_folder(key), fresh)
            store.remove_imported_figures(key)
        copied += 1
    for kind in (SOURCES, DERIVED):
        for path in sorted((other.root / kind).glob("*.json")):
            with atomic_file(store.root / kind / path.name) as fresh:
                shutil.copy(path, fresh)
    return copied


def _copy_folder(folder: Path, fresh: Path) -> None:
    """Copy the content of a folder into another one. Raises OSError for the first file that cannot be copied."""
    try:
        shutil.copytree(folder, fresh, dirs_exist_ok=True)
    except shutil.Error as error:
        # shutil.Error hides the errors of single files, among them that of a full disk, in a list.
        source, _, reason = error.args[0][0]
        raise OSError(f"{source} cannot be copied: {reason}") from error


def _make_run_tables(store: Store, key: str) -> Iterator[pd.DataFrame]:
    """Yield the tables of one run, one per file of its folder."""
    folder, record = store.cell_folder(key), dict(store.read_record(key) or {})
    # The importing store writes these anew.
    for name in ("files", FIGURES_ONLY):
        record.pop(name, None)
    yield _make_table(key, RECORD, text=[_to_json(record)])
    for part in (METRICS, FIGURES):
        if (folder / part).exists():
            numbers = dict(read_numbers(folder / part))
            yield _make_table(key, part, name=list(numbers), value=list(numbers.values()))
    if (folder / HISTORY).exists():
        yield _make_table(key, HISTORY, text=[_to_json(json.loads((folder / HISTORY).read_text(encoding="utf-8")))])
    if (folder / PREDICTIONS).exists():
        frame = pd.read_parquet(folder / PREDICTIONS)
        predicted = np.stack(frame["predicted"].to_list())
        if is_classification(frame, predicted.shape[1]):
            predicted = mark_predicted_class(predicted)
        wide = pd.DataFrame(predicted).add_prefix(PREDICTED)
        yield _to_long_table(key, PREDICTIONS, pd.concat([frame.drop(columns="predicted"), wide], axis=1), ["example"])
    if (folder / RESULTS).exists():
        frame = _read_results(folder / RESULTS)
        names = frame.select_dtypes("number").columns.drop("example")
        yield _to_long_table(key, RESULTS, frame[["example", "method", *names]], ["example", "method"])
    for part, place in ((CURVES, "x"), (LAYERS, "layer")):
        if (folder / part).exists():
            means = pd.read_parquet(folder / part).groupby(["method", "metric", place], sort=False)["value"].mean()
            named = means.reset_index().rename(columns={"metric": "name", place: "x"})
            yield named.assign(key=key, part=part)


def _read_results(path: Path) -> pd.DataFrame:
    """Return the figures of single examples without what no table needs."""
    frame = pd.read_parquet(path).drop(columns=list(UNUSED), errors="ignore")
    if TIME in frame:
        # The last digits of a time mean nothing, and were half the size of a file: rounded to 8 bits, at most 0.4 %.
        mantissa, exponent = np.frexp(frame[TIME].astype(np.float64))
        frame[TIME] = np.ldexp(np.round(mantissa * 2**8), exponent - 8)
    return frame


def is_classification(frame: pd.DataFrame, size: int) -> bool:
    """Return whether predictions of this size are probabilities of classes, one of which is the label."""
    return size > 1 and "label" in frame and pd.api.types.is_numeric_dtype(frame["label"])


def mark_predicted_class(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 for the likeliest class of each example and 0 for the others [N, C]."""
    # Tables need only the class, and probabilities were most of the size of a file.
    marks = np.zeros_like(probabilities)
    marks[np.arange(len(marks)), probabilities.argmax(1)] = 1
    return marks


def _make_table(key: str, part: str, **columns: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(columns).assign(key=key, part=part)


def _to_long_table(key: str, part: str, frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return a frame in long form, one row per number."""
    return (
        frame[[*by, *sorted(frame.columns.drop(by))]]
        .melt(by, var_name="name", value_name="value")
        .assign(key=key, part=part)
    )


def _restore_run(store: Store, key: str, table: pd.DataFrame) -> None:
    """Write the folder of a run from its rows: the same files, as far as tables and pages read them."""
    with atomic_folder(store.cell_folder(key)) as fresh:
        for name, rows in table.groupby("part", sort=False):
            part = str(name)
            if part in (METRICS, FIGURES):
                write_json(fresh / part, dict(zip(rows["name"], rows["value"], strict=True)))
            elif part == HISTORY:
                write_json(fresh / part, json.loads(rows["text"].iloc[0]))
            elif part != RECORD:
                _restore_frame(part, rows).to_parquet(fresh / part, index=False)
        record = json.loads(table.loc[table["part"] == RECORD, "text"].iloc[0])
        write_json(fresh / RECORD, record | {"files": file_sizes(fresh), FIGURES_ONLY: True})


def _restore_frame(part: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the frame that the rows of a part were made from."""
    if part in (CURVES, LAYERS):
        place = "x" if part == CURVES else "layer"
        return rows[["method", "name", "x", "value"]].rename(columns={"name": "metric", "x": place})
    by = ["example"] if part == PREDICTIONS else ["example", "method"]
    frame = rows.set_index([*by, "name"])["value"].unstack(sort=False).rename_axis(columns=None).reset_index()
    frame = frame.astype({"example": np.int64})
    if part != PREDICTIONS:
        return frame
    names = [name for name in map(str, frame.columns) if name.startswith(PREDICTED)]
    names.sort(key=lambda name: int(name.removeprefix(PREDICTED)))
    return frame.drop(columns=names).assign(predicted=list(frame[names].to_numpy(np.float32)))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
