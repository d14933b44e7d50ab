"""A cell is one run of a study; the store keeps finished cells, each in a folder that has its name only when whole."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd

from expound.data.atomic_files import atomic_folder
from expound.data.provenance import digest, get_versions, read_record, write_json
from expound.errors import ExpoundError
from expound.evaluation.workers.scheduler import available_cores
from expound_papers.runs.run_files import read_numbers

RECORD, FIGURES_ONLY = "cell.json", "figures_only"


@dataclass(frozen=True)
class Workspace:
    """The folders of a running cell, and the store of all cells.

    `work` survives a killed attempt, for checkpoints. `output` becomes the cell's folder at the end.
    """

    work: Path
    output: Path
    store: Store


@dataclass(frozen=True)
class Cell:
    """One training or judgement of a study: its configuration and the function that executes it.

    Args:
        config: everything that the outcome depends on, as JSON values; its digest is the cell's key (address).
        run: the function that executes the cell and writes its files into `Workspace.output`.
        title: the cell's place in the study, in words.
        needs: the keys of the cells that must be finished first.
        sources: where the data and models of `config` are on this machine; the outcome does not depend on that.
    """

    config: Mapping[str, Any]
    run: Callable[[Cell, Workspace], None]
    title: str
    needs: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The cell's address: 16 hexadecimal digits."""
        return digest(self.config)


@dataclass(frozen=True)
class Store:
    """A folder of finished cells that several studies share.

    `cells/KEY` holds finished cells, `.work/KEY` checkpoints of unfinished ones, `.claims/KEY` their locks, `failed/`
    tracebacks, `derived/` figures computed from several cells, `sources/` addresses of data on other machines.
    """

    root: Path

    def cell_folder(self, key: str) -> Path:
        """Return the folder of a finished cell."""
        return self.root / "cells" / key

    def work_folder(self, key: str) -> Path:
        """Return the folder in which an unfinished cell keeps its checkpoints."""
        return self.root / ".work" / key

    def lock_path(self, key: str) -> Path:
        """Return the lock file of a cell, which exists while a process executes it or after that one was killed."""
        return self.root / ".claims" / key

    def failure_path(self, key: str) -> Path:
        """Return the file with the traceback of a failed cell."""
        return self.root / "failed" / f"{key}.txt"

    def failure_reason(self, key: str) -> str:
        """Return the last line of a failed cell's traceback."""
        text = self.failure_path(key).read_text(encoding="utf-8").strip()
        # On a full disk the file may have been created without any content.
        if not text:
            return "its reason could not be written"
        return text.splitlines()[-1]

    def read_record(self, key: str) -> Mapping[str, Any] | None:
        """Return the record of a finished cell; None if it is missing or its files are incomplete."""
        folder = self.cell_folder(key)
        try:
            record = read_record(folder / RECORD)
            matches = record["key"] == key and digest(record["config"]) == key
            # Sizes reveal a file that was torn after the rename, as by a copy that broke off.
            sizes = {name: (folder / name).stat().st_size for name in record["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record if matches and sizes == record["files"] else None

    def is_done(self, key: str) -> bool:
        """Return whether a cell's figures exist."""
        return self.read_record(key) is not None

    def is_complete(self, key: str) -> bool:
        """Return whether a cell has all its files, such as model weights; imported figures do not."""
        record = self.read_record(key)
        return record is not None and not record.get(FIGURES_ONLY)

    def has_file(self, key: str, name: str) -> bool:
        """Return whether a finished cell has a file."""
        return (self.cell_folder(key) / name).exists()

    def read_numbers(self, key: str, name: str) -> dict[str, float]:
        """Return the numbers in a JSON file of a finished cell; an undefined one, null, is NaN."""
        return dict(read_numbers(self.cell_folder(key) / name))

    def read_frame(self, key: str, name: str) -> pd.DataFrame:
        """Return a Parquet file of a finished cell."""
        return pd.read_parquet(self.cell_folder(key) / name)

    def list_unfinished(self, cells: Sequence[Cell]) -> list[str]:
        """Return the keys of the cells to execute, in the order of `cells`.

        These are the cells without figures, and the cells they need whose figures alone were imported.
        """
        known = {cell.key: cell for cell in cells}
        unfinished, pending = set[str](), [key for key in known if not self.is_done(key)]
        while pending:
            key = pending.pop()
            unfinished.add(key)
            for need in known[key].needs:
                # The weights of an imported cell are missing, so a cell that starts from them repeats the training.
                if need in known and need not in unfinished and not self.is_complete(need):
                    pending.append(need)
        return [key for key in known if key in unfinished]

    def has_derived(self, key: str) -> bool:
        """Return whether the figure with this address, derived from several cells, was computed."""
        return self._derived_path(key).exists()

    def compute_derived(self, key: str, compute: Callable[[], float]) -> float:
        """Return the derived figure with this address; `compute` is called only when the store does not have it."""
        path = self._derived_path(key)
        if not path.exists():
            write_json(path, {"value": compute()})
        value = json.loads(path.read_text(encoding="utf-8"))["value"]
        # JSON has no NaN: `write_json` stores it as null.
        return float("nan") if value is None else float(value)

    def _derived_path(self, key: str) -> Path:
        return self.root / "derived" / f"{key}.json"

    def read_sources(self, study: str) -> Mapping[str, Any]:
        """Return the addresses of a study's datasets and models on the machine that its imported figures come from."""
        path = self.root / "sources" / f"{study}.json"
        if not path.exists():
            return {}
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def list_finished(self) -> list[str]:
        """Return the keys of all finished cells."""
        names = [path.name for path in self.root.glob("cells/[!.]*")]
        return sorted(filter(self.is_done, names))

    def require_folder(self, key: str) -> Path:
        """Return the folder of a cell that another one needs.

        Raises:
            ExpoundError: the cell is not finished, or only its figures were imported.
        """
        if not self.is_complete(key):
            raise ExpoundError(f"the run {key} is not finished in {self.root}")
        return self.cell_folder(key)

    def find_leftovers(self) -> set[str]:
        """Return the keys of cells with temporary files: those being executed, and those whose process was killed."""
        names = set[str]()
        for pattern in (".work/*", ".claims/*", "cells/.*"):
            # A temporary folder is called .KEY.SUFFIX, a lock KEY or KEY.SUFFIX.
            names |= {path.name.lstrip(".").partition(".")[0] for path in self.root.glob(pattern)}
        return names

    def clean(self, key: str) -> None:
        """Remove temporary files of killed attempts; move a damaged cell aside.

        Call it only while holding the cell's lock.
        """
        for temporary in self.root.glob(f"cells/.{key}.*"):
            shutil.rmtree(temporary, ignore_errors=True)
        if self.is_complete(key):
            self._remove_temporary(key)
        if self.cell_folder(key).exists() and not self.is_done(key):
            # Kept rather than deleted: the user may want to see what a disk error left of hours of training.
            aside = self.root / ".damaged" / f"{key}.{uuid4().hex[:8]}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.cell_folder(key), aside)

    def remove_imported_figures(self, key: str) -> None:
        """Remove a cell that has imported figures alone, to make room for the finished run that replaces it."""
        if self.is_done(key) and not self.is_complete(key):
            shutil.rmtree(self.cell_folder(key))

    @contextmanager
    def workspace(self, cell: Cell) -> Iterator[Workspace]:
        """Yield a cell's workspace; the cell is finished when the block ends without an error."""
        self.work_folder(cell.key).mkdir(parents=True, exist_ok=True)
        with atomic_folder(self.cell_folder(cell.key)) as output:
            yield Workspace(self.work_folder(cell.key), output, self)
            self.remove_imported_figures(cell.key)
        # Checkpoints go only after the rename: a kill in between loses nothing and leaves files for `clean`.
        self._remove_temporary(cell.key)

    def _remove_temporary(self, key: str) -> None:
        self.failure_path(key).unlink(missing_ok=True)
        shutil.rmtree(self.work_folder(key), ignore_errors=True)


def write_record(folder: Path, cell: Cell, threads: int, *, seconds: float, cpu_seconds: float) -> None:
    """Write the record of a finished cell beside its files: configuration, sizes of files, versions, machine, cost."""
    origin = {"versions": get_versions(), "date": datetime.now(UTC).date().isoformat(), "machine": describe_machine()}
    cost = {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3), "threads": threads}
    facts = {"key": cell.key, "title": cell.title, "config": cell.config}
    write_json(folder / RECORD, facts | {"files": file_sizes(folder)} | origin | cost)


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file in a folder and its subfolders, by relative path."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sizes[str(path.relative_to(folder))] = path.stat().st_size
    return sizes


def describe_machine() -> str:
    """Return the architecture, number of cores and graphics card of this machine, in words."""
    # A cell that computes nothing with torch should not import it for this line.
    torch: Any = sys.modules.get("torch")
    gpu = "no GPU"
    if torch is not None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
    return f"{platform.machine()}, {available_cores()} CPU cores, {gpu}"
