"""Storage of finished parts of a comparison, from which a stopped comparison resumes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from expound.data.atomic_files import atomic_folder
from expound.data.provenance import digest, get_versions, to_json_value, write_json
from expound.errors import ExpoundError
from expound.evaluation.compare.judge import JudgedExamples
from expound.reports.explanations import Explanation, Explanations

RUN = "expound_run.json"
HIDDEN = ".parts"
NAMES = ("dataset",)
"""Entries of a configuration that only name what another entry is a digest of."""
TABLES = ("table.csv", "table.tex", "difference.csv")
FILES = (RUN, "report.html", "results.parquet", "curves.parquet", "examples.parquet", *TABLES)


class OtherComparisonError(ExpoundError):
    """A folder holds results of another configuration."""


class ComparisonParts:
    """Finished parts by the indices of their examples, in a folder, or in memory if `folder` is None.

    A part appears under its name only when it is complete. A folder belongs to one configuration.

    Raises:
        OtherComparisonError: the folder holds results of another configuration.
    """

    def __init__(self, folder: Path | None, config: dict[str, Any]) -> None:
        self.folder, self.done = folder, dict[tuple[int, ...], JudgedExamples]()
        if folder is None:
            return
        self.hidden = folder / HIDDEN
        run = folder / RUN
        if run.exists():
            _check_same_config(run, config)
        else:
            write_json(run, {"digest": _digest_config(config), "config": config, "versions": get_versions()})
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
        config = json.loads((folder / RUN).read_text(encoding="utf-8"))["config"]
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
    if not (folder / RUN).exists() or not (folder / "report.html").exists():
        return None
    _check_same_config(folder / RUN, config)
    return _read_results(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a finished comparison. Raises ExpoundError for another folder."""
    try:
        config: dict[str, Any] = json.loads((folder / RUN).read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError) as error:
        raise ExpoundError(f"{folder} holds no comparison: {RUN} is missing or damaged") from error
    if not (folder / "report.html").exists():
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


def _digest_config(config: dict[str, Any]) -> str:
    return digest({name: value for name, value in config.items() if name not in NAMES})


def _check_same_config(path: Path, config: dict[str, Any]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        same, there = found["digest"] == _digest_config(config), found["config"]
    except (OSError, ValueError, KeyError) as error:
        raise ExpoundError(f"{path} is damaged: choose another output directory or remove this one") from error
    if not same:
        here = to_json_value(config)
        other = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
        raise OtherComparisonError(
            f"{path.parent} holds a comparison of something else (see {', '.join(other)} in {path.name}): "
            "choose another output directory, or replace it (--overwrite)"
        )
