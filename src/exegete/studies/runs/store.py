"""One run of a study, and where runs are kept: a folder that has its name only when all of it is written."""

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

from exegete.data.atomic_files import atomic_folder
from exegete.data.provenance import digest, get_versions, write_json
from exegete.errors import ExegeteError

RECORD, FIGURES_ONLY = "cell.json", "figures_only"


@dataclass(frozen=True)
class Workspace:
    """The folders of a run: `work` survives a killed attempt, `output` becomes the run's folder, `store` has all."""

    work: Path
    output: Path
    store: Store


@dataclass(frozen=True)
class Cell:
    """A run: what it is made of, and the function that does it.

    `config` is all that the outcome depends on, as JSON values; its digest is the run's address. `sources` say where
    that is found on this machine. `needs` are the addresses of runs that come first.
    """

    config: Mapping[str, Any]
    run: Callable[[Cell, Workspace], None]
    title: str
    needs: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The address: 16 hexadecimal digits."""
        return digest(self.config)


@dataclass(frozen=True)
class Store:
    """A folder of finished runs, which several studies share: `cells/KEY`, and what is under way beside it."""

    root: Path

    def cell_folder(self, key: str) -> Path:
        """Where a finished run lies."""
        return self.root / "cells" / key

    def work_folder(self, key: str) -> Path:
        """Where an unfinished run works."""
        return self.root / ".work" / key

    def lock_path(self, key: str) -> Path:
        """Return the lock file of a cell, which exists while a process is at it or after that one was killed."""
        return self.root / ".claims" / key

    def failure_path(self, key: str) -> Path:
        """Where it stands why a run failed."""
        return self.root / "failed" / f"{key}.txt"

    def failure_reason(self, key: str) -> str:
        """The last line of why a run failed, which a full disk may have kept nothing of."""
        text = self.failure_path(key).read_text(encoding="utf-8").strip()
        return text.splitlines()[-1] if text else "its reason could not be written"

    def read_record(self, key: str) -> Mapping[str, Any] | None:
        """The stored record of a finished run; None when there is none, or when its files are incomplete."""
        folder = self.cell_folder(key)
        try:
            record: Mapping[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            whole = record["key"] == key and digest(record["config"]) == key
            file_sizes = {name: (folder / name).stat().st_size for name in record["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record if whole and file_sizes == record["files"] else None

    def is_done(self, key: str) -> bool:
        """Whether a run's figures are there."""
        return self.read_record(key) is not None

    def is_complete(self, key: str) -> bool:
        """Whether a run is there with all that others may need, and not as imported figures alone."""
        record = self.read_record(key)
        return record is not None and not record.get(FIGURES_ONLY)

    def list_unfinished(self, cells: Sequence[Cell]) -> list[str]:
        """The runs to do, in their order: those that are not done, and those that they need but of their figures."""
        known = {cell.key: cell for cell in cells}
        found, todo = set[str](), [key for key in known if not self.is_done(key)]
        while todo:
            key = todo.pop()
            found.add(key)
            todo += [
                need for need in known[key].needs if need in known and need not in found and not self.is_complete(need)
            ]
        return [key for key in known if key in found]

    def has_derived(self, key: str) -> bool:
        """Whether the figure from several runs that has this address was computed."""
        return self._derived(key).exists()

    def compute_derived(self, key: str, value: Callable[[], float]) -> float:
        """A figure that comes from several runs, by its address; computed once."""
        path = self._derived(key)
        if not path.exists():
            write_json(path, {"value": value()})
        found = json.loads(path.read_text(encoding="utf-8"))["value"]
        return float("nan") if found is None else float(found)

    def _derived(self, key: str) -> Path:
        return self.root / "derived" / f"{key}.json"

    def read_sources(self, study: str) -> Mapping[str, Any]:
        """The addresses of a study's datasets and models on the machine that its imported figures come from."""
        path = self.root / "sources" / f"{study}.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def list_finished(self) -> list[str]:
        """The addresses of all finished runs."""
        names = sorted(path.name for path in self.root.glob("cells/*") if not path.name.startswith("."))
        return [name for name in names if self.is_done(name)]

    def require_folder(self, key: str) -> Path:
        """The folder of a run that another one needs. Raises ExegeteError when it is not there."""
        if not self.is_complete(key):
            raise ExegeteError(f"the run {key} is not finished in {self.root}")
        return self.cell_folder(key)

    def find_leftovers(self) -> set[str]:
        """The addresses of runs that somebody is at, or was when he was killed."""
        names = {path.name.partition(".")[0] for room in (".work", ".claims") for path in self.root.glob(f"{room}/*")}
        return names | {path.name.split(".")[1] for path in self.root.glob("cells/.*")}

    def clean(self, key: str) -> None:
        """Removes what killed attempts left, imported figures of a run that is done now, and puts a torn run aside.

        Only for who has claimed the run.
        """
        for left in self.root.glob(f"cells/.{key}.*"):
            shutil.rmtree(left, ignore_errors=True)
        if self.is_complete(key):
            self._tidy(key)
        if self.is_done(key) and not self.is_complete(key):
            shutil.rmtree(self.cell_folder(key))
        if self.cell_folder(key).exists() and not self.is_done(key):
            aside = self.root / ".damaged" / f"{key}.{uuid4().hex[:8]}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.cell_folder(key), aside)

    @contextmanager
    def workspace(self, cell: Cell) -> Iterator[Workspace]:
        """The run's workspace; when the block ends without an error, the run is finished."""
        self.work_folder(cell.key).mkdir(parents=True, exist_ok=True)
        with atomic_folder(self.cell_folder(cell.key)) as fresh:
            yield Workspace(self.work_folder(cell.key), fresh, self)
        self._tidy(cell.key)

    def _tidy(self, key: str) -> None:
        """Removes what a finished run does not need any more."""
        self.failure_path(key).unlink(missing_ok=True)
        shutil.rmtree(self.work_folder(key), ignore_errors=True)


def write_record(folder: Path, cell: Cell, threads: int, *, seconds: float, cpu_seconds: float) -> None:
    """Writes the record of a finished run beside its files."""
    made = {"versions": get_versions(), "date": datetime.now(UTC).date().isoformat(), "machine": describe_machine()}
    cost = {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3), "threads": threads}
    facts = {"key": cell.key, "title": cell.title, "config": cell.config}
    write_json(folder / RECORD, facts | {"files": file_sizes(folder)} | made | cost)


def file_sizes(folder: Path) -> dict[str, int]:
    """The size of each file in a run's folder, by its path there."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def describe_machine() -> str:
    """The kind of this machine, in words: its architecture, cores and graphics card."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch: Any = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else "no GPU"
    return f"{platform.machine()}, {cores} CPU cores, {gpu}"
