"""One run of a study, and where runs are kept: a folder that has its name only when all of it is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from exegete.data.provenance import digest, versions, whole_folder, write_json
from exegete.errors import ExegeteError

RECORD = "cell.json"


@dataclass(frozen=True)
class Workspace:
    """Where a run works: `work` outlives a killed attempt, `fresh` becomes the run's folder, `store` has the others."""

    work: Path
    fresh: Path
    store: Store


@dataclass(frozen=True)
class Cell:
    """A run: what it is made of, and the function that does it.

    `config` is all that the outcome depends on, as JSON values; its digest is the run's address. `sources` say where
    that is found on this machine. `needs` are the addresses of runs that come first. `flops` is a rough estimate.
    """

    config: Mapping[str, Any]
    run: Callable[[Cell, Workspace], None]
    title: str
    needs: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)
    flops: float = 0.0

    @cached_property
    def key(self) -> str:
        """The address: 16 hexadecimal digits."""
        return digest(self.config)


@dataclass(frozen=True)
class Store:
    """A folder of finished runs, which several studies share: `cells/KEY`, and what is under way beside it."""

    root: Path

    def folder(self, key: str) -> Path:
        """Where a finished run lies."""
        return self.root / "cells" / key

    def work(self, key: str) -> Path:
        """Where an unfinished run works."""
        return self.root / ".work" / key

    def failure(self, key: str) -> Path:
        """Where it stands why a run failed."""
        return self.root / "failed" / f"{key}.txt"

    def record(self, key: str) -> Mapping[str, Any] | None:
        """The stored record of a finished run; None when there is none, or when its files are incomplete."""
        folder = self.folder(key)
        try:
            record: Mapping[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            whole = record["key"] == key and digest(record["config"]) == key
            sizes = {name: (folder / name).stat().st_size for name in record["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record if whole and sizes == record["files"] else None

    def done(self, key: str) -> bool:
        """Whether a run is finished and whole."""
        return self.record(key) is not None

    def finished(self) -> list[str]:
        """The addresses of all finished runs."""
        names = sorted(path.name for path in self.root.glob("cells/*") if not path.name.startswith("."))
        return [name for name in names if self.done(name)]

    def needed(self, key: str) -> Path:
        """The folder of a run that another one needs. Raises ExegeteError when it is not there."""
        if not self.done(key):
            raise ExegeteError(f"the run {key} is not finished in {self.root}")
        return self.folder(key)

    def sweep(self, key: str) -> None:
        """Removes what killed attempts left, and puts a torn run aside. Only for who has claimed the run."""
        for left in self.root.glob(f"cells/.{key}.*"):
            shutil.rmtree(left, ignore_errors=True)
        if self.folder(key).exists() and not self.done(key):
            aside = self.root / ".damaged" / f"{key}.{uuid4().hex[:8]}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.folder(key), aside)

    @contextmanager
    def fresh(self, cell: Cell) -> Iterator[Workspace]:
        """The run's workspace; when the block ends without an error, the run is finished."""
        self.work(cell.key).mkdir(parents=True, exist_ok=True)
        with whole_folder(self.folder(cell.key)) as fresh:
            yield Workspace(self.work(cell.key), fresh, self)
        self.failure(cell.key).unlink(missing_ok=True)
        shutil.rmtree(self.work(cell.key), ignore_errors=True)


def describe(folder: Path, cell: Cell, seconds: float, threads: int) -> None:
    """Writes the record of a finished run beside its files."""
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    record = {"key": cell.key, "title": cell.title, "config": cell.config, "files": files, "versions": versions()}
    cost = {"seconds": round(seconds, 3), "threads": threads, "flops": cell.flops}
    write_json(folder / RECORD, record | cost)
