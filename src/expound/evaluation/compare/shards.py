"""Storage of a comparison: the rows that were compared, and finished parts, from which a stopped one resumes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from expound.data.atomic_files import atomic_file, atomic_folder
from expound.data.provenance import FINISHED, RECORD, RUNNING, RunFolder, read_record
from expound.data.readers.exchanges import EXCHANGE
from expound.errors import ExpoundError
from expound.evaluation.compare.judge import JudgedExamples
from expound.reports.explanations import Explanation, Explanations

EXAMPLES = "examples.parquet"
_SPANS = pa.list_(pa.list_(pa.int64()))
SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "text_pair": pa.string(),
        "label_name": pa.string(),
        "rationale": _SPANS,
        "rationale_pair": _SPANS,
        "image": pa.binary(),
        "exchange": pa.string(),
    }
)
"""`label_name`: the model's name of the label; `image`: a PNG; `exchange`: the columns of generated text as JSON.

Missing values are null.
"""


def write_examples(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows to a Parquet file."""
    content = pa.Table.from_pylist([_to_stored_row(row) for row in rows], schema=SCHEMA)
    with atomic_file(path) as fresh:
        pq.write_table(content, fresh, compression="zstd")


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without missing values."""
    return [_from_stored_row(row) for row in pq.read_table(path).to_pylist()]


def _to_stored_row(row: Mapping[str, Any]) -> dict[str, Any]:
    stored = {name: row.get(name) for name in SCHEMA.names}
    if stored["image"] is not None:
        # PNG is lossless, so that explanations of the loaded picture are the same.
        buffer = BytesIO()
        stored["image"].save(buffer, format="PNG")
        stored["image"] = buffer.getvalue()
    exchange = {name: row[name] for name in EXCHANGE if row.get(name) is not None}
    if exchange:
        stored["exchange"] = json.dumps(exchange, ensure_ascii=False)
    return stored


def _from_stored_row(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in row.items() if value is not None}
    if "image" in known:
        known["image"] = Image.open(BytesIO(known["image"]))
    exchange: dict[str, Any] = json.loads(known.pop("exchange", "{}"))
    return known | exchange


HIDDEN = ".parts"
TABLES = ("table.csv", "table.tex", "difference.csv")
FILES = (RECORD, "report.html", "results.parquet", "curves.parquet", "examples.parquet", *TABLES)


class ComparisonParts:
    """Finished parts by the indices of their examples, in a folder, or in memory if `folder` is None.

    A part appears under its name only when it is complete. A folder belongs to one configuration.

    Raises:
        OtherRunError: the folder holds results of another configuration.
    """

    def __init__(self, folder: Path | None, config: dict[str, Any]) -> None:
        self.folder, self.done = folder, dict[tuple[int, ...], JudgedExamples]()
        if folder is None:
            return
        self.hidden = folder / HIDDEN
        run = _make_run(folder, config)
        if run.read() is None:
            run.write(RUNNING)
        for part in map(_read_results, self.hidden.glob("[0-9]*")):
            self.done[tuple(part.results["example"].unique())] = part

    def __contains__(self, indices: Sequence[int]) -> bool:
        return tuple(indices) in self.done

    def __setitem__(self, indices: Sequence[int], part: JudgedExamples) -> None:
        self.done[tuple(indices)] = part
        if self.folder is None:
            return
        # Another process may have finished this part, or the whole comparison, whose parts are gone then.
        existing = suppress(FileExistsError, FileNotFoundError)
        with existing, atomic_folder(self.hidden / f"{indices[0]}-{len(indices)}") as fresh:
            part.results.to_parquet(fresh / "results.parquet", index=False)
            part.curves.to_parquet(fresh / "curves.parquet", index=False)
            Explanations(part.attributions).save(fresh / "attributions")

    def merge(self, shards: Sequence[Sequence[int]]) -> JudgedExamples:
        """Return all parts as one, sorted by method (in the order of the comparison) and then by example."""
        parts = [self.done[tuple(indices)] for indices in shards]
        results = pd.concat([part.results for part in parts], ignore_index=True)
        curves = pd.concat([part.curves for part in parts], ignore_index=True)
        items = list[Explanation]()
        for part in parts:
            items += part.attributions
        # `factorize` numbers the methods in the order in which they occur.
        order = np.lexsort((results["example"], pd.factorize(results["method"])[0]))
        return JudgedExamples(results.iloc[order].reset_index(drop=True), curves, [items[row] for row in order])


def remove_parts(folder: Path) -> None:
    """Remove the parts of a comparison whose results are saved."""
    shutil.rmtree(folder / HIDDEN, ignore_errors=True)


def remove_comparison(folder: Path) -> None:
    """Remove the files that a comparison wrote, if the folder holds one; other files stay."""
    try:
        config = read_record(folder / RECORD)["config"]
    except (OSError, ValueError, KeyError):
        return
    if not {"methods", "metrics", "examples"} <= set(config):
        return
    for name in (HIDDEN, "attributions", "against"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def load_finished(folder: Path, config: dict[str, Any]) -> JudgedExamples | None:
    """Return the stored results of a finished comparison with this configuration; None if it is not finished."""
    record = _make_run(folder, config).read()
    if record is None or record["status"] != FINISHED:
        return None
    return _read_results(folder)


def mark_finished(folder: Path, config: dict[str, Any]) -> None:
    """Record that all files of a comparison are written."""
    _make_run(folder, config).write(FINISHED)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a finished comparison. Raises ExpoundError for another folder."""
    try:
        record = read_record(folder / RECORD)
        config: dict[str, Any] = record["config"]
    except (OSError, ValueError, KeyError) as error:
        raise ExpoundError(f"{folder} holds no comparison: {RECORD} is missing or damaged") from error
    if record.get("status") != FINISHED:
        raise ExpoundError(f"the comparison in {folder} is not finished: run the same command again")
    return config


def _read_results(folder: Path) -> JudgedExamples:
    results, curves = read_frames(folder)
    items: list[Explanation] = list(Explanations.load(folder / "attributions"))
    return JudgedExamples(results, curves, items)


def read_frames(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return results and curves. Raises ExpoundError if they are missing or damaged."""
    try:
        return pd.read_parquet(folder / "results.parquet"), pd.read_parquet(folder / "curves.parquet")
    except (OSError, pa.ArrowException) as error:
        raise ExpoundError(f"{folder} is damaged: {error}; remove it, or choose another one") from error


def _make_run(folder: Path, config: dict[str, Any]) -> RunFolder:
    return RunFolder(
        folder,
        config,
        "a comparison of something else (see {names} in expound_run.json)",
        "choose another output directory, or replace it (--overwrite)",
        # The name of a dataset, whose rows have a digest.
        re.compile(r"dataset(\..*)?"),
    )
