"""Figures of runs in one small Parquet file, without weights: what the tables of a page are made from.

Each row is a figure: the `key` of its cell, the `part` (a file of the cell's folder), the `example`, `method` and
position `x`, its `name` and `value`. What is not a number (a cell's record, the history of its training) is `text`.
Predictions of a classifier are 1 for the predicted class and 0 for the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from expound.data.atomic_files import atomic_file, atomic_folder
from expound.data.provenance import digest, write_json
from expound.errors import ExpoundError
from expound.training.loop.run import HISTORY, METRICS
from expound_papers.runs.run_files import CURVES, FIGURES, LAYERS, PREDICTIONS, RESULTS
from expound_papers.runs.store import FIGURES_ONLY, RECORD, Store, file_sizes
from expound_papers.study.study import Study
from expound_papers.tables.agreement import list_comparisons

COLUMNS = ("key", "part", "example", "method", "name", "x", "value", "text")
SOURCES, DERIVED = "sources", "derived"
PREDICTED, TIME = "predicted ", "seconds"
UNUSED = ("probability", "tokens", "truncated", "peak_memory")


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
    # BYTE_STREAM_SPLIT groups bytes of equal significance, which compress better than whole floats; brotli makes files
    # a tenth smaller than zstd, and figures are written seldom.
    with atomic_file(path) as fresh:
        pq.write_table(
            pa.Table.from_pandas(table, preserve_index=False),
            fresh,
            compression="brotli",
            compression_level=11,
            use_dictionary=["key", "part", "method", "name"],
            column_encoding=dict.fromkeys(("value", "x"), "BYTE_STREAM_SPLIT") | {"example": "DELTA_BINARY_PACKED"},
        )
    return len(keys)


@dataclass(frozen=True)
class FiguresFile(Store):
    """A file of `export_figures` as a store that is only read: tables and pages are made from it as from a folder."""

    @cached_property
    def rows(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The rows of the file by key and part.

        Raises:
            ExpoundError: the file cannot be read, or was not written by `export_figures`.
        """
        try:
            table = pd.read_parquet(self.root, columns=list(COLUMNS))
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ExpoundError(f"{self.root} holds no figures of runs: {reason}") from error
        groups = table.groupby(["key", "part"], sort=False)
        return {(str(key), str(part)): rows for (key, part), rows in groups}

    @cached_property
    def sources(self) -> dict[str, Any]:
        """The addresses of the datasets and models of each study."""
        if ("", SOURCES) not in self.rows:
            return {}
        rows = self.rows["", SOURCES]
        return {name: json.loads(text) for name, text in zip(rows["name"], rows["text"], strict=True)}

    @cached_property
    def derived(self) -> dict[str, float]:
        """The figures that were computed from several runs, by address."""
        if ("", DERIVED) not in self.rows:
            return {}
        rows = self.rows["", DERIVED]
        return dict(zip(rows["name"], rows["value"], strict=True))

    @cached_property
    def _records(self) -> dict[str, dict[str, Any]]:
        records = {}
        for (key, part), rows in self.rows.items():
            if part == RECORD:
                record = json.loads(rows["text"].iloc[0])
                # The address of a run is the digest of its configuration.
                if digest(record["config"]) == key:
                    records[key] = record | {FIGURES_ONLY: True}
        return records

    def read_record(self, key: str) -> Mapping[str, Any] | None:
        """Return the record of a run; None if the file does not have it."""
        return self._records.get(key)

    def read_sources(self, study: str) -> Mapping[str, Any]:
        """Return the addresses of a study's datasets and models on the machine that the figures come from."""
        return dict(self.sources.get(study, {}))

    def list_finished(self) -> list[str]:
        """Return the keys of all runs."""
        return sorted(self._records)

    def has_file(self, key: str, name: str) -> bool:
        """Return whether a run has figures of this part."""
        return (key, name) in self.rows

    def read_numbers(self, key: str, name: str) -> dict[str, float]:
        """Return the figures of a part that has one number per name."""
        rows = self.rows[key, name]
        return dict(zip(rows["name"], rows["value"].tolist(), strict=True))

    def read_frame(self, key: str, name: str) -> pd.DataFrame:
        """Return the frame that the rows of a part were made from."""
        return _restore_frame(name, self.rows[key, name])

    def has_derived(self, key: str) -> bool:
        """Return whether the file has the figure with this address, derived from several runs."""
        return key in self.derived

    def compute_derived(self, key: str, compute: Callable[[], float]) -> float:
        """Return the derived figure with this address. Raises KeyError if the file does not have it."""
        return float(self.derived[key])


def import_figures(path: Path, store: Store) -> int:
    """Add the runs in a file of `export_figures` to a store, without replacing any; return the number of new runs.

    Raises:
        ExpoundError: the file cannot be read, or was not written by `export_figures`.
    """
    file, added = FiguresFile(path), 0
    for name, addresses in file.sources.items():
        write_json(store.root / SOURCES / f"{name}.json", addresses)
    for name, value in file.derived.items():
        write_json(store.root / DERIVED / f"{name}.json", {"value": value})
    for key in file.list_finished():
        if not store.is_done(key):
            _restore_run(store, key, file)
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
        if store.has_file(key, part):
            numbers = store.read_numbers(key, part)
            yield _make_table(key, part, name=list(numbers), value=list(numbers.values()))
    if (folder / HISTORY).exists():
        # Six digits are more than a curve shows, and halve the file's part for histories.
        history = json.loads(
            (folder / HISTORY).read_text(encoding="utf-8"), parse_float=lambda x: float(f"{float(x):.6g}")
        )
        yield _make_table(key, HISTORY, text=[_to_json(history)])
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
    for name in frame.select_dtypes("number").columns.drop("example"):
        # Last digits that no table shows were half the size of a file: times change by at most 1.6 %, others by 1e-5.
        bits = 6 if name == TIME else 16
        mantissa, exponent = np.frexp(frame[name].astype(np.float64))
        frame[name] = np.ldexp(np.round(mantissa * 2**bits), exponent - bits)
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


def _restore_run(store: Store, key: str, file: FiguresFile) -> None:
    """Write the folder of a run of the file: the same files, as far as tables and pages read them."""
    with atomic_folder(store.cell_folder(key)) as fresh:
        for part in (METRICS, FIGURES):
            if file.has_file(key, part):
                write_json(fresh / part, file.read_numbers(key, part))
        if file.has_file(key, HISTORY):
            write_json(fresh / HISTORY, json.loads(file.rows[key, HISTORY]["text"].iloc[0]))
        for part in (PREDICTIONS, RESULTS, CURVES, LAYERS):
            if file.has_file(key, part):
                file.read_frame(key, part).to_parquet(fresh / part, index=False)
        write_json(fresh / RECORD, {**(file.read_record(key) or {}), "files": file_sizes(fresh)})


def _restore_frame(part: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the frame that the rows of a part were made from."""
    if part in (CURVES, LAYERS):
        place = "x" if part == CURVES else "layer"
        return rows[["method", "name", "x", "value"]].rename(columns={"name": "metric", "x": place})
    # By codes instead of `unstack`, which was half the time of making a page.
    method_codes, methods = pd.factorize(rows["method"].fillna(""))
    entry_codes, entries = pd.factorize(rows["example"].to_numpy(np.int64) * len(methods) + method_codes)
    name_codes, names = pd.factorize(rows["name"])
    table = np.full((len(entries), len(names)), np.nan)
    table[entry_codes, name_codes] = rows["value"]
    # All columns at once, since pandas is slow to insert a single one.
    columns: dict[str, Any] = {"example": entries // len(methods)}
    if part != PREDICTIONS:
        columns["method"] = methods[entries % len(methods)]
        return pd.DataFrame(columns | dict(zip(names, table.T, strict=True)))
    order = {name: number for number, name in enumerate(names)}
    predicted = sorted((name for name in names if name.startswith(PREDICTED)), key=_get_predicted_class)
    columns |= {name: table[:, number] for name, number in order.items() if name not in predicted}
    columns["predicted"] = list(table[:, [order[name] for name in predicted]].astype(np.float32))
    return pd.DataFrame(columns)


def _get_predicted_class(name: str) -> int:
    return int(name.removeprefix(PREDICTED))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
